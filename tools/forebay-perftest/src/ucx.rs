//! UCX as client and server set it up: a context for one-sided operations, and an I/O thread for the cache.

use forebay_memory::Pool;
use forebay_rdma::{IoThread, IoThreadOptions, Library};
use forebay_ucx::{Context, Fabric, Options, Resource};

use crate::error::Error;
use crate::options::UcxOptions;

/// A context for one-sided operations, with the settings that its fabric needs.
pub(crate) fn context(library: &'static Library, ucx: &UcxOptions) -> Result<Context, Error> {
    let mut settings = Options::tuned().one_sided();
    if !ucx.devices.is_empty() {
        settings = settings.devices(ucx.devices.iter().map(String::as_str));
    }
    if !ucx.transports.is_empty() {
        settings = settings.transports(ucx.transports.iter().map(String::as_str));
    }
    let (context, _) = Fabric::context(library, settings)?;
    check_devices(context.resources(), ucx)?;
    Ok(context)
}

/// An I/O thread of the cache.
pub(crate) fn io_thread(library: &'static Library, ucx: &UcxOptions, pool: &Pool) -> Result<IoThread, Error> {
    let options = IoThreadOptions {
        devices: ucx.devices.clone(),
        transports: ucx.transports.clone(),
        ..IoThreadOptions::new("bench", pool.clone(), pool.capacity())
    };
    Ok(IoThread::start(library, options)?)
}

/// Whether every device that was named is there: UCX is content with what is left, such as shared memory.
fn check_devices(found: &[Resource], ucx: &UcxOptions) -> Result<(), Error> {
    let is_there = |device: &String| {
        found.iter().any(|resource| {
            let port = resource.device.strip_prefix(device.as_str());
            port.is_some_and(|port| port.is_empty() || port.starts_with(':'))
        })
    };
    match ucx.devices.iter().find(|device| !is_there(device)) {
        None => Ok(()),
        Some(missing) => {
            let found: Vec<_> = found.iter().map(ToString::to_string).collect();
            let what = format!("UCX has no device `{missing}` here; it has {}", found.join(", "));
            Err(Error::Usage(format!(
                "{}; `ucx_info -d` lists all, --devices names those to use",
                what.replace("; ", ", ")
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_not_there_is_named_with_those_that_are() {
        let resource = |device: &str| Resource { transport: "rc_verbs".into(), device: device.into() };
        let found = [resource("rxe0:1"), resource("memory")];
        let named = |device: &str| UcxOptions { devices: vec![device.into()], ..UcxOptions::default() };
        assert!(check_devices(&found, &named("rxe0:1")).is_ok() && check_devices(&found, &named("rxe0")).is_ok());
        assert!(check_devices(&found, &UcxOptions::default()).is_ok());
        for missing in ["rxe", "rxe0:2", "mlx5_0:1"] {
            let error = check_devices(&found, &named(missing)).unwrap_err().to_string();
            assert!(error.contains(missing) && error.contains("rc_verbs/rxe0:1") && error.contains("; "), "{error}");
        }
    }
}
