//! What can go wrong, and what helps.

use forebay_cuda_sys as sys;

use crate::handles::Device;

/// Why something of CUDA failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no driver.
    #[error("CUDA's driver cannot be loaded: {reason}; read into memory of the host, or install NVIDIA's driver")]
    Library {
        /// The dynamic linker's words.
        reason: String,
    },
    /// There is no such device.
    #[error(
        "there is no {device}: the driver shows {count} of them; `nvidia-smi -L` lists them, and CUDA_VISIBLE_DEVICES hides them"
    )]
    NoDevice {
        /// What was asked for.
        device: Device,
        /// How many there are.
        count: u32,
    },
    /// An address is none of the device's.
    #[error(
        "{address:#x} is no memory of {device}; give the address of a tensor that lies there, as `tensor.data_ptr()`"
    )]
    NotOfDevice {
        /// The address.
        address: u64,
        /// Where it was to be.
        device: Device,
    },
    /// Copies cannot come after what is on a stream.
    #[error("copies cannot wait for the stream {stream:#x}: {reason}")]
    Stream {
        /// CUDA's handle of it.
        stream: usize,
        /// Why not, and what helps.
        reason: &'static str,
    },
    /// The driver refused something.
    #[error("cannot {what}: {name} ({code}): {text}")]
    Driver {
        /// What was to be done.
        what: &'static str,
        /// The driver's name of the error, such as `CUDA_ERROR_OUT_OF_MEMORY`.
        name: String,
        /// Its number.
        code: u32,
        /// The driver's words.
        text: String,
    },
    /// The system refused memory or a thread.
    #[error("cannot {what}: {reason}")]
    System {
        /// What was to be done.
        what: &'static str,
        /// The system's words.
        reason: String,
    },
    /// The device's thread has ended.
    #[error("the thread of {device} has ended; make another client")]
    Ended {
        /// The device.
        device: Device,
    },
}

impl Error {
    /// The errno that is nearest to it.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Library { .. } | Self::NoDevice { .. } => libc::ENODEV,
            Self::NotOfDevice { .. } => libc::EFAULT,
            Self::Stream { .. } => libc::EINVAL,
            Self::Driver { code, .. } => match *code {
                sys::CUDA_ERROR_INVALID_VALUE => libc::EINVAL,
                sys::CUDA_ERROR_OUT_OF_MEMORY => libc::ENOMEM,
                sys::CUDA_ERROR_NO_DEVICE | sys::CUDA_ERROR_INVALID_DEVICE => libc::ENODEV,
                sys::CUDA_ERROR_NOT_PERMITTED => libc::EPERM,
                sys::CUDA_ERROR_NOT_SUPPORTED => libc::EOPNOTSUPP,
                _ => libc::EIO,
            },
            Self::System { .. } => libc::ENOMEM,
            Self::Ended { .. } => libc::EIO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_the_drivers_name_and_an_errno() {
        let of = |code| Error::Driver {
            what: "copy to the device",
            name: "CUDA_ERROR_X".to_owned(),
            code,
            text: "words".to_owned(),
        };
        assert_eq!(of(2).to_string(), "cannot copy to the device: CUDA_ERROR_X (2): words");
        let errnos = [1, 2, 100, 700, 800, 801].map(|code| of(code).errno());
        assert_eq!(errnos, [libc::EINVAL, libc::ENOMEM, libc::ENODEV, libc::EIO, libc::EPERM, libc::EOPNOTSUPP]);
        let missing = Error::NoDevice { device: Device(3), count: 2 };
        assert!(missing.to_string().starts_with("there is no cuda:3: the driver shows 2"), "{missing}");
    }
}
