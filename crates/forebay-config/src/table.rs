//! The form of the table of keys: what a line of it knows, and the macro that makes a typed struct of it.

use std::fmt;

use crate::value::Raw;

/// What the environment variables of this program start with.
pub(crate) const PREFIX: &str = "FOREBAY_";

/// One key of a configuration `C`, with its type erased to functions.
pub struct KeyOf<C> {
    /// Its dotted name: `worker.memory.size`.
    pub name: &'static str,
    /// The heading that it is documented under.
    pub section: &'static str,
    /// What it does, in lines.
    pub doc: &'static [&'static str],
    /// A value to show, as a TOML literal, where the default is unset or empty.
    pub example: Option<&'static str>,
    pub(crate) form: fn() -> String,
    pub(crate) limits: fn() -> Option<String>,
    pub(crate) write: fn(&mut C, &Raw) -> Result<(), String>,
    pub(crate) toml: fn(&C) -> Option<String>,
    #[cfg(test)]
    pub(crate) field: &'static str,
}

impl<C: Default> KeyOf<C> {
    /// The environment variable that sets it: `FOREBAY_WORKER_MEMORY_SIZE`.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("{}{}", PREFIX, self.name.replace(['.', '-'], "_").to_ascii_uppercase())
    }

    /// What its value looks like: `size, 4KiB to 4MiB`.
    #[must_use]
    pub fn form(&self) -> String {
        match (self.limits)() {
            Some(limits) => format!("{}, {limits}", (self.form)()),
            None => (self.form)(),
        }
    }

    /// Its default as a TOML literal; `None` when it is unset by default.
    #[must_use]
    pub fn default_toml(&self) -> Option<String> {
        (self.toml)(&C::default())
    }

    /// Its value in `config` as a TOML literal; `None` when unset.
    #[must_use]
    pub fn value_toml(&self, config: &C) -> Option<String> {
        (self.toml)(config)
    }
}

impl<C> fmt::Debug for KeyOf<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Key").field(&self.name).finish()
    }
}

/// Makes `Config`, its defaults and `KEYS` from the table. A line is
///
/// ```text
/// /// Documentation, of the field and of the key.
/// field "dotted.name": Type = default, in lowest..=highest, example "TOML literal";
/// ```
///
/// `sections name;` stands for the sections of another file. There, the macro `name` makes the table of the sections before it, its own
/// and those after it.
macro_rules! keys {
    ($(section $heading:tt $keys:tt)* sections $name:ident; $($after:tt)*) => {
        $name! { { $(section $heading $keys)* } { $($after)* } }
    };
    ($(
        section $section:literal {
            $(
                $(#[doc = $doc:literal])+
                $field:ident $name:literal: $type:ty = $default:expr
                $(, in $limits:expr)?
                $(, example $example:literal)?;
            )+
        }
    )+) => {
        /// All settings, typed. A field is called like its key, with `_` for `.`.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Config {
            $($($(#[doc = $doc])+ pub $field: $type,)+)+
        }

        impl Default for Config {
            fn default() -> Self {
                Self { $($($field: $default,)+)+ }
            }
        }

        /// Every key there is, by section.
        pub static KEYS: &[$crate::table::KeyOf<Config>] = &[$($(
            $crate::table::KeyOf::<Config> {
                name: $name,
                section: $section,
                doc: &[$($doc),+],
                example: keys!(@first $($example)?),
                form: <$type as $crate::value::Setting>::form,
                limits: || keys!(@limits $type $(, $limits)?),
                write: |config, raw| {
                    let value = <$type as $crate::value::Setting>::read(raw)?;
                    $($crate::value::within(&value, &$limits)?;)?
                    config.$field = value;
                    Ok(())
                },
                toml: |config| $crate::value::Setting::toml(&config.$field),
                #[cfg(test)]
                field: stringify!($field),
            },
        )+)+];
    };
    (@first) => { None };
    (@first $example:literal) => { Some($example) };
    (@limits $type:ty) => { None };
    (@limits $type:ty, $limits:expr) => { Some($crate::value::describe_limits::<$type>(&$limits)) };
}

pub(crate) use keys;
