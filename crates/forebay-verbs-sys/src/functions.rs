//! A library's functions, resolved all at once.

/// Declares a structure of functions of a library, of which it has all or is not there.
macro_rules! functions {
    ($(#[$about:meta])* $library:ident { $($(#[$doc:meta])* $name:ident: $type:ty;)* }) => {
        $(#[$about])*
        pub struct $library {
            $($(#[$doc])* pub $name: $type,)*
        }

        impl $library {
            /// # Safety
            /// `library` is the one whose header has these functions.
            unsafe fn resolve(library: &libloading::Library) -> Result<Self, libloading::Error> {
                // SAFETY: the types are those of the header, for the symbols' default version.
                unsafe { Ok(Self { $($name: *library.get::<$type>(concat!(stringify!($name), "\0").as_bytes())?,)* }) }
            }

            /// The functions of the library called `soname`, which stays loaded.
            ///
            /// # Safety
            /// As for `resolve`; and what the library does when it is loaded must be safe.
            unsafe fn open(soname: &str) -> Result<Self, String> {
                // SAFETY: the caller's.
                let opened = unsafe { libloading::Library::new(soname) };
                let library: &'static libloading::Library = Box::leak(Box::new(opened.map_err(|error| error.to_string())?));
                // SAFETY: the caller's.
                unsafe { Self::resolve(library) }.map_err(|error| error.to_string())
            }
        }
    };
}
