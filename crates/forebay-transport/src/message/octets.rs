//! Bytes of a message as they lie in it: the same on the wire as a `Vec<u8>`, which serde reads and writes byte by
//! byte.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes that are copied neither when they are read nor when they are written.
pub(super) struct Octets<'a>(pub(super) Cow<'a, [u8]>);

impl Serialize for Octets<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Octets<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <&'de [u8]>::deserialize(deserializer).map(|bytes| Self(Cow::Borrowed(bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn on_the_wire_they_are_what_a_vector_is(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let octets = postcard::to_stdvec(&Some(Octets(Cow::Borrowed(&bytes)))).unwrap();
            prop_assert_eq!(&octets, &postcard::to_stdvec(&Some(bytes.clone())).unwrap());
            let read: Option<Octets<'_>> = postcard::from_bytes(&octets).unwrap();
            prop_assert_eq!(&*read.unwrap().0, &bytes[..]);
        }
    }
}
