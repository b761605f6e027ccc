//! The integrity check of a sector.

/// CRC32C (Castagnoli, as in iSCSI, RFC 3720 B.4) of `bytes`.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    // The crate widens every CRC to 64 bits; this one is 32 bits wide.
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

#[cfg(test)]
mod tests {
    use super::crc32c;

    #[test]
    fn the_rfc_3720_vectors_hold() {
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }
}
