//! From what a source holds to the type that a key has, and back to TOML.
//!
//! The environment and flags hold only text, TOML also numbers, booleans and arrays. A [`Scalar`] is a type with a
//! textual form; [`Setting`] is what a key may be: a scalar, an optional one (unset by default) or a list of them.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use forebay_types::{ByteSize, format_duration, parse_duration};
use toml_edit::Value;

/// A value as its source holds it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Raw {
    /// An environment variable, a flag, or a TOML string.
    Text(String),
    /// A TOML integer.
    Number(i64),
    /// A TOML boolean.
    Switch(bool),
    /// A TOML array of strings.
    List(Vec<String>),
    /// Some other TOML type, by name.
    Other(&'static str),
}

impl Raw {
    /// A TOML value as the types of the table read it.
    pub(crate) fn of(value: &Value) -> Self {
        match value {
            Value::String(text) => Raw::Text(text.value().clone()),
            Value::Integer(number) => Raw::Number(*number.value()),
            Value::Boolean(switch) => Raw::Switch(*switch.value()),
            Value::Float(_) => Raw::Other("a fraction (write it in quotes, with its unit)"),
            Value::Datetime(_) => Raw::Other("a date"),
            Value::InlineTable(_) => Raw::Other("a table"),
            Value::Array(array) => {
                let items: Option<Vec<String>> = array.iter().map(|item| item.as_str().map(str::to_owned)).collect();
                items.map_or(Raw::Other("a list of anything but text in quotes"), Raw::List)
            }
        }
    }
}

/// The TOML type besides a string that can stand for a scalar.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Native {
    Text,
    Number,
    Switch,
}

/// A type with a textual form.
pub(crate) trait Scalar: Sized {
    const NATIVE: Native = Native::Text;
    /// What to write, for documentation and errors: `size`, `true or false`.
    fn form() -> String;
    fn parse(text: &str) -> Result<Self, String>;
    /// A TOML literal that parses back to this value.
    fn toml(&self) -> String;
}

/// What a key may be.
pub(crate) trait Setting: Sized {
    fn form() -> String;
    fn read(raw: &Raw) -> Result<Self, String>;
    /// A TOML literal; `None` when unset.
    fn toml(&self) -> Option<String>;
}

/// A TOML string, quoted and escaped.
pub(crate) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// Refuses a value outside the limits that the table gives its key.
pub(crate) fn within<T: Setting + PartialOrd>(value: &T, limits: &RangeInclusive<T>) -> Result<(), String> {
    if limits.contains(value) {
        return Ok(());
    }
    Err(format!("{} is outside {}", value.toml().unwrap_or_default(), describe_limits(limits)))
}

/// `1 to 100`.
pub(crate) fn describe_limits<T: Setting>(limits: &RangeInclusive<T>) -> String {
    let plain = |value: &T| value.toml().unwrap_or_default().replace('"', "");
    format!("{} to {}", plain(limits.start()), plain(limits.end()))
}

impl<T: Scalar> Setting for T {
    fn form() -> String {
        <T as Scalar>::form()
    }

    fn read(raw: &Raw) -> Result<Self, String> {
        let expected = || format!("expected {}", <T as Scalar>::form());
        match raw {
            Raw::Text(text) => T::parse(text.trim()),
            Raw::Number(number) if T::NATIVE == Native::Number => T::parse(&number.to_string()),
            Raw::Switch(switch) if T::NATIVE == Native::Switch => T::parse(&switch.to_string()),
            Raw::Number(_) | Raw::Switch(_) if T::NATIVE == Native::Text => Err(format!("{}, in quotes", expected())),
            Raw::Number(_) => Err(format!("{}, not a number", expected())),
            Raw::Switch(_) => Err(format!("{}, not a boolean", expected())),
            Raw::List(_) => Err(format!("{}, not a list", expected())),
            Raw::Other(kind) => Err(format!("{}, not {kind}", expected())),
        }
    }

    fn toml(&self) -> Option<String> {
        Some(Scalar::toml(self))
    }
}

impl<T: Scalar> Setting for Option<T> {
    fn form() -> String {
        <T as Scalar>::form()
    }

    /// Empty text unsets, so that a variable or flag can take back what the file says.
    fn read(raw: &Raw) -> Result<Self, String> {
        match raw {
            Raw::Text(text) if text.trim().is_empty() => Ok(None),
            _ => T::read(raw).map(Some),
        }
    }

    fn toml(&self) -> Option<String> {
        self.as_ref().map(Scalar::toml)
    }
}

impl<T: Scalar> Setting for Vec<T> {
    fn form() -> String {
        format!("list of {}", <T as Scalar>::form())
    }

    fn read(raw: &Raw) -> Result<Self, String> {
        let items = match raw {
            Raw::List(items) => items.clone(),
            Raw::Text(text) => split_list(text),
            _ => return Err(format!("expected a {}: `[\"A\", \"B\"]` or `\"A,B\"`", <Self as Setting>::form())),
        };
        items.iter().map(|item| T::parse(item.trim())).collect()
    }

    fn toml(&self) -> Option<String> {
        let items: Vec<String> = self.iter().map(Scalar::toml).collect();
        Some(format!("[{}]", items.join(", ")))
    }
}

/// `a,b`, or a TOML array for items that hold a comma themselves.
fn split_list(text: &str) -> Vec<String> {
    let text = text.trim();
    if text.is_empty() {
        return Vec::new();
    }
    let array = text.starts_with('[').then(|| text.parse::<Value>().ok()).flatten();
    let strings = array
        .as_ref()
        .and_then(Value::as_array)
        .and_then(|array| array.iter().map(|item| item.as_str().map(str::to_owned)).collect::<Option<Vec<String>>>());
    strings.unwrap_or_else(|| text.split(',').map(str::to_owned).collect())
}

/// Text that can be shown on one line.
fn plain_text(text: &str) -> Result<&str, String> {
    if text.is_empty() {
        return Err("it is empty".to_owned());
    }
    if text.contains(char::is_control) {
        return Err(format!("{text:?} has a control character in it"));
    }
    Ok(text)
}

impl Scalar for String {
    fn form() -> String {
        "text".to_owned()
    }

    fn parse(text: &str) -> Result<Self, String> {
        plain_text(text).map(str::to_owned)
    }

    fn toml(&self) -> String {
        quoted(self)
    }
}

impl Scalar for PathBuf {
    fn form() -> String {
        "path".to_owned()
    }

    fn parse(text: &str) -> Result<Self, String> {
        plain_text(text).map(Self::from)
    }

    fn toml(&self) -> String {
        quoted(&self.to_string_lossy())
    }
}

impl Scalar for bool {
    const NATIVE: Native = Native::Switch;

    fn form() -> String {
        "true or false".to_owned()
    }

    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| format!("`{text}` is neither `true` nor `false`"))
    }

    fn toml(&self) -> String {
        self.to_string()
    }
}

impl Scalar for ByteSize {
    const NATIVE: Native = Native::Number;

    fn form() -> String {
        "size".to_owned()
    }

    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: forebay_types::QuantityError| error.to_string())
    }

    fn toml(&self) -> String {
        quoted(&self.to_string())
    }
}

impl Scalar for Duration {
    /// Taken as a number only to be refused with a message that asks for the unit.
    const NATIVE: Native = Native::Number;

    fn form() -> String {
        "duration".to_owned()
    }

    fn parse(text: &str) -> Result<Self, String> {
        parse_duration(text).map_err(|error| error.to_string())
    }

    fn toml(&self) -> String {
        quoted(&format_duration(*self))
    }
}

macro_rules! integers {
    ($($type:ty: $form:literal),+) => {$(
        impl Scalar for $type {
            const NATIVE: Native = Native::Number;

            fn form() -> String {
                $form.to_owned()
            }

            fn parse(text: &str) -> Result<Self, String> {
                text.parse().map_err(|_| {
                    format!("`{text}` is not a whole number from {} to {}", <$type>::MIN, <$type>::MAX)
                })
            }

            fn toml(&self) -> String {
                self.to_string()
            }
        }
    )+};
}

integers!(u16: "port", u32: "number", u64: "number", i32: "number");

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Raw {
        Raw::Text(text.to_owned())
    }

    #[test]
    fn a_bare_toml_integer_is_bytes_for_a_size_and_refused_for_a_duration() {
        assert_eq!(ByteSize::read(&Raw::Number(4096)), Ok(ByteSize::kib(4)));
        assert!(Duration::read(&Raw::Number(5)).unwrap_err().contains("unit"));
        assert_eq!(Duration::read(&Raw::Number(0)), Ok(Duration::ZERO));
        assert!(ByteSize::read(&Raw::Number(-1)).is_err());
    }

    #[test]
    fn numbers_and_booleans_may_be_written_as_text_but_text_not_as_a_number() {
        assert_eq!(u16::read(&text("29999")), Ok(29999));
        assert_eq!(bool::read(&text("true")), Ok(true));
        assert_eq!(String::read(&Raw::Number(5)), Err("expected text, in quotes".to_owned()));
        assert!(u16::read(&Raw::Number(70000)).is_err());
        assert!(u16::read(&Raw::Switch(true)).is_err());
        assert!(bool::read(&Raw::Number(1)).is_err());
    }

    #[test]
    fn empty_text_unsets_an_optional_value_and_empties_a_list() {
        assert_eq!(Option::<String>::read(&text(" ")), Ok(None));
        assert_eq!(Vec::<String>::read(&text("")), Ok(vec![]));
        assert!(String::read(&text("")).is_err());
    }

    #[test]
    fn a_list_is_an_array_or_comma_separated_text() {
        let two = Ok(vec!["a".to_owned(), "b".to_owned()]);
        assert_eq!(Vec::<String>::read(&text("a, b")), two);
        assert_eq!(Vec::<String>::read(&text("['a', 'b']")), two);
        assert_eq!(Vec::<String>::read(&Raw::List(vec!["a".into(), "b".into()])), two);
        assert_eq!(Vec::<String>::read(&text("[\"a,b\"]")), Ok(vec!["a,b".to_owned()]));
        assert_eq!(Vec::<String>::read(&text("[::1]:80")), Ok(vec!["[::1]:80".to_owned()]));
        assert!(Vec::<String>::read(&text("a,,b")).is_err());
        assert!(Vec::<String>::read(&Raw::Number(1)).is_err());
    }

    #[test]
    fn a_value_outside_its_limits_is_refused_with_the_limits() {
        assert_eq!(within(&5u32, &(1..=9)), Ok(()));
        assert_eq!(within(&50u32, &(1..=9)), Err("50 is outside 1 to 9".to_owned()));
        let sizes = ByteSize::kib(4)..=ByteSize::mib(4);
        assert_eq!(within(&ByteSize::mib(8), &sizes), Err("\"8MiB\" is outside 4KiB to 4MiB".to_owned()));
    }
}
