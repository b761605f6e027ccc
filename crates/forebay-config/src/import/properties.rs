//! The syntax of Java's `.properties` files, as `java.util.Properties.load` documents it.
//!
//! A logical line is a natural one and those that follow while an odd number of backslashes ends it. A key ends at the
//! first `=`, `:` or white space that no backslash precedes. `#` and `!` start comments, only where a logical line starts.

use std::borrow::Cow;

/// One property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Property {
    /// The natural line that it starts on, from 1.
    pub(crate) line: usize,
    pub(crate) name: String,
    pub(crate) value: String,
}

/// A file's text: UTF-8 if it is that, else ISO-8859-1, which `java.util.Properties` writes; with the line of the first byte that
/// told so.
pub(crate) fn decode(bytes: &[u8]) -> (Cow<'_, str>, Option<usize>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (Cow::Borrowed(text), None),
        Err(error) => {
            let line = bytes[..error.valid_up_to()].iter().filter(|byte| **byte == b'\n').count() + 1;
            (Cow::Owned(bytes.iter().map(|byte| char::from(*byte)).collect()), Some(line))
        }
    }
}

/// White space within a line.
const SPACE: [char; 3] = [' ', '\t', '\u{c}'];

/// All properties of `text`, in order.
///
/// # Errors
/// Each logical line with a malformed `\uXXXX`, and why.
pub(crate) fn parse(text: &str) -> Result<Vec<Property>, Vec<(usize, String)>> {
    let mut properties = Vec::new();
    let mut bad = Vec::new();
    for (line, logical) in logical_lines(text.strip_prefix('\u{feff}').unwrap_or(text)) {
        let (name, value) = split(&logical);
        match (unescape(name), unescape(value)) {
            (Ok(name), Ok(value)) => properties.push(Property { line, name, value }),
            (Err(why), _) | (_, Err(why)) => bad.push((line, why)),
        }
    }
    if bad.is_empty() { Ok(properties) } else { Err(bad) }
}

/// Logical lines with the numbers of the natural ones that they start on, without blanks and comments.
fn logical_lines(text: &str) -> Vec<(usize, String)> {
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let mut lines = text.split('\n').enumerate().map(|(index, line)| (index + 1, line.trim_start_matches(SPACE)));
    let mut logical = Vec::new();
    while let Some((number, first)) = lines.next() {
        if first.is_empty() || first.starts_with(['#', '!']) {
            continue;
        }
        let mut whole = first.to_owned();
        while continues(&whole) {
            whole.pop();
            let Some((_, next)) = lines.next() else { break };
            whole += next;
        }
        logical.push((number, whole));
    }
    logical
}

fn continues(line: &str) -> bool {
    line.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1
}

/// Key and value, both still escaped.
fn split(line: &str) -> (&str, &str) {
    let mut escaped = false;
    let end = line.find(|c: char| {
        let ends = !escaped && (matches!(c, '=' | ':') || SPACE.contains(&c));
        escaped = !escaped && c == '\\';
        ends
    });
    let (name, rest) = line.split_at(end.unwrap_or(line.len()));
    let rest = rest.trim_start_matches(SPACE);
    let rest = rest.strip_prefix(['=', ':']).unwrap_or(rest);
    (name, rest.trim_start_matches(SPACE))
}

fn unescape(text: &str) -> Result<String, String> {
    // Java's escapes are UTF-16 units: a character beyond the first plane is two of them.
    let mut units: Vec<u16> = Vec::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        let plain = match (c, c == '\\') {
            (_, false) => c,
            (_, true) => match rest.next() {
                Some('u') => {
                    units.push(unicode_unit(&mut rest)?);
                    continue;
                }
                Some('t') => '\t',
                Some('n') => '\n',
                Some('r') => '\r',
                Some('f') => '\u{c}',
                Some(other) => other,
                None => continue,
            },
        };
        units.extend_from_slice(plain.encode_utf16(&mut [0; 2]));
    }
    String::from_utf16(&units).map_err(|_| "half of a surrogate pair in \\u escapes".to_owned())
}

fn unicode_unit(rest: &mut std::str::Chars<'_>) -> Result<u16, String> {
    let mut unit = 0;
    for _ in 0..4 {
        let digit = rest.next().and_then(|c| c.to_digit(16)).ok_or("\\u is not followed by four hexadecimal digits")?;
        unit = unit << 4 | digit;
    }
    u16::try_from(unit).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<(usize, String, String)> {
        parse(text).unwrap().into_iter().map(|property| (property.line, property.name, property.value)).collect()
    }

    fn pair(line: usize, name: &str, value: &str) -> (usize, String, String) {
        (line, name.to_owned(), value.to_owned())
    }

    #[test]
    fn equals_colon_and_white_space_all_separate() {
        let expected: Vec<_> = (1..=6).map(|line| pair(line, "Truth", "Beauty")).collect();
        assert_eq!(
            pairs("Truth = Beauty\n\tTruth:Beauty\nTruth\t\t\t:Beauty\r\nTruth Beauty\rTruth=Beauty\n Truth  =Beauty"),
            expected
        );
        assert_eq!(
            pairs("a==b\nc = :d\nempty\nalso="),
            [pair(1, "a", "=b"), pair(2, "c", ":d"), pair(3, "empty", ""), pair(4, "also", "")]
        );
    }

    #[test]
    fn comments_and_blanks_are_skipped_and_never_continue() {
        assert_eq!(pairs("# a=1 \\\n! b=2\n\n   \n  # c=3\nd=4 # not a comment"), [pair(6, "d", "4 # not a comment")]);
    }

    #[test]
    fn an_odd_number_of_backslashes_continues_the_line_and_drops_leading_space() {
        assert_eq!(
            pairs("fruits  apple, banana, \\\n    pear, \\\n    # lime\nnext=1"),
            [pair(1, "fruits", "apple, banana, pear, # lime"), pair(4, "next", "1")]
        );
        assert_eq!(pairs("a=b\\\\\nc=d"), [pair(1, "a", "b\\"), pair(2, "c", "d")]);
        assert_eq!(pairs("a=b\\"), [pair(1, "a", "b")]);
    }

    #[test]
    fn escapes_stand_for_characters_in_keys_and_values() {
        assert_eq!(pairs(r"a\:b\ c\=d = \u00e4\t\z\ud83d\ude00"), [pair(1, "a:b c=d", "ä\tz😀")]);
    }

    #[test]
    fn what_is_not_utf_8_is_javas_own_encoding_and_the_line_that_told_is_known() {
        assert_eq!(decode("a=ä".as_bytes()), ("a=ä".into(), None));
        assert_eq!(decode(b"# Gr\xfc\xdfe"), ("# Grüße".into(), Some(1)));
        assert_eq!(decode(b"a=1\nb=\xe4\n").1, Some(2));
    }

    #[test]
    fn a_malformed_unicode_escape_is_an_error_with_its_line() {
        let bad = parse("a=1\nb=\\u12\nc=\\ud83d").unwrap_err();
        assert_eq!(bad.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [2, 3]);
    }
}
