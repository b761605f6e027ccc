//! Private keys of the curve P-256: which bytes are one, and how a library takes it.
//!
//! Programs of others, browsers among them, take certificates with keys of this curve. No browser takes Ed25519.

use zeroize::Zeroizing;

/// A private key is a number of this many bytes, the first one the most significant.
const LEN: usize = 32;

/// Private keys are the numbers from 1 to below this one, the order of the curve's group (NIST SP 800-186, 3.2.1.3).
const ORDER: [u8; LEN] = [
    0xff, 0xff, 0xff, 0xff, 0x00, 0x00, 0x00, 0x00, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xbc, 0xe6, 0xfa,
    0xad, 0xa7, 0x17, 0x9e, 0x84, 0xf3, 0xb9, 0xca, 0xc2, 0xfc, 0x63, 0x25, 0x51,
];

/// What stands before the number in a PrivateKeyInfo (PKCS #8, RFC 5208) of an ECPrivateKey (RFC 5915). The public key may be left
/// out of it: whoever reads it computes that.
const HEAD: [u8; 35] = [
    0x30, 0x41, 0x02, 0x01, 0x00, // PrivateKeyInfo, version 0
    0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, // id-ecPublicKey
    0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, // prime256v1, which is P-256
    0x04, 0x27, 0x30, 0x25, 0x02, 0x01, 0x01, 0x04, 0x20, // ECPrivateKey, version 1, 32 bytes
];

/// A private key.
pub(crate) struct PrivateKey(Zeroizing<[u8; LEN]>);

impl PrivateKey {
    /// The first of 256 candidates that is one; `candidate` makes each from its number. One in 2^32 random candidates is none, and
    /// each key is as likely as any other: rejection sampling (FIPS 186-5, A.2.2). RFC 9180 (7.1.3) derives keys in the same way.
    pub(crate) fn first(mut candidate: impl FnMut(u8) -> Zeroizing<[u8; LEN]>) -> Option<Self> {
        (0..=u8::MAX).find_map(|number| Self::from_bytes(candidate(number)))
    }

    /// The one with these bytes, if they are one.
    ///
    /// How long it takes may say how many leading bytes are those of [`ORDER`]: of a random key, hardly ever one.
    pub(crate) fn from_bytes(bytes: Zeroizing<[u8; LEN]>) -> Option<Self> {
        let is_key = bytes.iter().any(|byte| *byte != 0) && *bytes < ORDER;
        is_key.then_some(Self(bytes))
    }

    /// As libraries read it: PKCS #8, in DER.
    pub(crate) fn to_pkcs8(&self) -> Zeroizing<[u8; HEAD.len() + LEN]> {
        let mut document = Zeroizing::new([0_u8; HEAD.len() + LEN]);
        let (head, number) = document.split_at_mut(HEAD.len());
        head.copy_from_slice(&HEAD);
        number.copy_from_slice(self.0.as_slice());
        document
    }
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};

    use super::*;

    /// A number that differs from another one in its last byte.
    fn ending(mut bytes: [u8; LEN], last: u8) -> [u8; LEN] {
        bytes[LEN - 1] = last;
        bytes
    }

    #[test]
    fn keys_are_from_one_to_below_the_order_and_the_library_agrees() {
        let (zero, one) = ([0; LEN], ending([0; LEN], 1));
        let (last, over) = (ending(ORDER, 0x50), ending(ORDER, 0x52));
        for (bytes, is_key) in
            [(zero, false), (one, true), (last, true), (ORDER, false), (over, false), ([0xff; LEN], false)]
        {
            assert_eq!(PrivateKey::from_bytes(Zeroizing::new(bytes)).is_some(), is_key, "{bytes:?}");
            let document = PrivateKey(Zeroizing::new(bytes)).to_pkcs8();
            let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, document.as_slice());
            assert_eq!(pair.is_ok(), is_key, "{bytes:?}");
        }
    }

    /// The public key of 1 is the generator of the group, which starts with these bytes (SP 800-186, 3.2.1.3).
    #[test]
    fn a_library_computes_the_public_key() {
        let one = PrivateKey::from_bytes(Zeroizing::new(ending([0; LEN], 1))).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, one.to_pkcs8().as_slice()).unwrap();
        assert_eq!(&pair.public_key().as_ref()[..9], &[4, 0x6b, 0x17, 0xd1, 0xf2, 0xe1, 0x2c, 0x42, 0x47]);
    }

    #[test]
    fn what_is_no_key_is_passed_over() {
        let candidates = [[0; LEN], ORDER, [0xff; LEN], [7; LEN], [8; LEN]];
        let first = PrivateKey::first(|number| Zeroizing::new(candidates[usize::from(number)])).unwrap();
        assert_eq!(*first.0, [7; LEN]);
        assert!(PrivateKey::first(|_| Zeroizing::new(ORDER)).is_none());
    }
}
