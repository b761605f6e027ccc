//! The configuration that a machine is looked at with, also where it is wrong.

use anyhow::Context as _;
use forebay_config::{Config, ConfigErrors, Loaded, Sources};
use forebay_doctor::facts::Configuration;

/// A configuration, or the defaults with what is wrong with it: the machine can be looked at all the same.
///
/// # Errors
/// When the defaults are wrong.
pub(super) fn configured(loaded: Result<Loaded, ConfigErrors>) -> anyhow::Result<(Loaded, Configuration)> {
    match loaded {
        Ok(loaded) => {
            let configuration = Configuration::of(&loaded);
            Ok((loaded, configuration))
        }
        Err(errors) => {
            let problems = errors.to_string().lines().map(str::to_owned).collect();
            let defaults = Config::load(&Sources::new()).context("the defaults are wrong")?;
            Ok((defaults, Configuration { problems, ..Configuration::default() }))
        }
    }
}
