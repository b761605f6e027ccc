//! How threads that read wait for workers' answers themselves ([`forebay_transport::driving`]): the same over every kind of link.

use forebay_config::Config;
use forebay_transport::driving::DriveOptions;

/// As the configuration says.
#[must_use]
pub fn drive_options(config: &Config) -> DriveOptions {
    DriveOptions { wait: config.client_drive_wait, spin: config.client_drive_spin }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_config::Sources;

    #[test]
    fn links_that_are_told_nothing_wait_as_the_defaults_of_the_configuration_say() {
        let loaded = Config::load(&Sources::new()).unwrap();
        assert_eq!(drive_options(&loaded.config), DriveOptions::default());
    }
}
