//! What to do about a device node that cannot be opened: the system's words tell who refused it.

/// What the system says of a node that the device rules of a container or a unit leave out, to root as well (EPERM). A node's
/// permissions give EACCES.
pub(crate) const BY_RULES: &str = "Operation not permitted";

/// What is to be typed where `reason` came of opening a node.
pub(crate) struct Remedies<'a> {
    /// For a user whom the node's permissions leave out.
    pub(crate) mode: &'a str,
    /// For a container or a unit whose device rules leave the node out.
    pub(crate) rules: &'a str,
    /// The module whose driver is to be behind it.
    pub(crate) module: &'a str,
}

impl Remedies<'_> {
    /// For a node that is there, and that the system refused in these words.
    pub(crate) fn of(&self, reason: &str) -> String {
        let Self { mode, rules, module } = self;
        match reason {
            BY_RULES => {
                format!("the device rules of the container or the unit leave it out, whatever its permissions: {rules}")
            }
            // ENODEV and ENXIO: the node was made by hand, or by an image.
            "No such device" | "No such device or address" => {
                format!("no driver is behind it: modprobe {module}, on the host")
            }
            _ => format!("{mode}; {rules}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn who_refuses_a_node_is_told_by_the_systems_words() {
        let remedies = Remedies { mode: "chmod", rules: "--device", module: "fuse" };
        let of = |code: i32| {
            let words = io::Error::from_raw_os_error(code).to_string();
            remedies.of(words.split(" (os error").next().unwrap())
        };
        assert_eq!(of(libc::EACCES), "chmod; --device");
        assert!(of(libc::EPERM).ends_with("whatever its permissions: --device"), "{}", of(libc::EPERM));
        assert!(of(libc::ENXIO).contains("modprobe fuse") && of(libc::ENODEV).contains("modprobe fuse"));
    }
}
