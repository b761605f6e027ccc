//! The transports and devices that UCX uses.

use std::fmt;

/// A transport over a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Resource {
    /// UCX's name of the transport: `rc_mlx5`, `rc_verbs`, `dc_mlx5`, `srd`, `tcp`, `posix`, `cma`, …
    pub transport: String,
    /// UCX's name of the device: `mlx5_0:1`, `eth0`, `memory`, …
    pub device: String,
}

impl Resource {
    /// Whether the NIC moves the bytes: the InfiniBand verbs in their kinds, and EFA's SRD.
    #[must_use]
    pub fn is_rdma(&self) -> bool {
        const RDMA: [&str; 5] = ["rc_", "dc_", "ud_", "srd", "gga_"];
        RDMA.iter().any(|prefix| self.transport.starts_with(prefix))
    }

    /// Whether messages to other processes go over it. `self` stays in its process, and `cma` and its like only copy what others
    /// have told of: over those alone no two processes ever meet, and UCX crashes when they try.
    #[must_use]
    pub fn carries_messages(&self) -> bool {
        const OF_HOSTS: [&str; 4] = ["tcp", "posix", "sysv", "xpmem"];
        self.is_rdma() || OF_HOSTS.contains(&self.transport.as_str())
    }

    /// Whether it connects processes of one host only.
    #[must_use]
    pub fn is_shared_memory(&self) -> bool {
        ["posix", "sysv", "cma", "knem", "xpmem", "self"].contains(&self.transport.as_str())
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.transport, self.device)
    }
}

/// The resources in what `ucp_context_print_info` prints: lines such as
/// `#      resource 2  :  md 1  dev 2  flags -- posix/memory`.
pub(crate) fn of_context(text: &str) -> Vec<Resource> {
    let lines = text.lines().filter(|line| line.trim_start_matches(['#', ' ']).starts_with("resource "));
    lines.filter_map(|line| parse(line.split_whitespace().next_back()?)).collect()
}

/// The resources in what `ucp_ep_print_info` prints: lines such as
/// `#                 lane[0]:  2:posix/memory.0 md[1]          -> md[1]/posix/sysdev[255] am am_bw#0`.
pub(crate) fn of_endpoint(text: &str) -> Vec<Resource> {
    let mut found = Vec::new();
    for line in text.lines() {
        let Some((_, lane)) = line.split_once("lane[") else { continue };
        // A lane of the connection manager has a name and no number of a resource: `lane[1]: cm tcp`.
        let words = lane.split_whitespace().skip(1);
        let Some(resource) = words.take(2).find_map(|word| parse(word.split_once(':').map_or(word, |(_, name)| name)))
        else {
            continue;
        };
        // `.0` is the path: a device may be used over several.
        let device = match resource.device.rsplit_once('.') {
            Some((device, path)) if path.bytes().all(|byte| byte.is_ascii_digit()) => device.to_owned(),
            _ => resource.device,
        };
        found.push(Resource { device, ..resource });
    }
    found
}

fn parse(name: &str) -> Option<Resource> {
    let (transport, device) = name.split_once('/')?;
    (!transport.is_empty() && !device.is_empty())
        .then(|| Resource { transport: transport.to_owned(), device: device.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(resources: Vec<Resource>) -> Vec<String> {
        resources.iter().map(Resource::to_string).collect()
    }

    #[test]
    fn the_resources_of_a_context_are_read_from_what_ucx_prints() {
        let text = "#            md 0  :  component 1  tcp \n#\n\
                    #      resource 0  :  md 0  dev 0  flags -- tcp/lo\n\
                    #      resource 1  :  md 1  dev 2  flags -x rc_mlx5/mlx5_0:1\n";
        assert_eq!(names(of_context(text)), ["tcp/lo", "rc_mlx5/mlx5_0:1"]);
    }

    #[test]
    fn the_lanes_of_an_endpoint_are_read_from_what_ucx_prints() {
        let text = "#                 lane[0]:  2:posix/memory.0 md[1]          -> md[1]/posix/sysdev[255] am\n\
                    #                 lane[1]: 10:rc_verbs/rxe0:1.0 md[3]     -> md[3]/ib rma_bw\n\
                    #                 lane[2]: cm tcp\n";
        assert_eq!(names(of_endpoint(text)), ["posix/memory", "rc_verbs/rxe0:1"]);
    }

    #[test]
    fn rdma_transports_are_told_from_others() {
        let is_rdma = |transport: &str| Resource { transport: transport.into(), device: "x".into() }.is_rdma();
        assert!(["rc_mlx5", "rc_verbs", "dc_mlx5", "ud_verbs", "srd"].into_iter().all(is_rdma));
        assert!(!["tcp", "posix", "sysv", "cma", "self", "cuda_copy"].into_iter().any(is_rdma));
    }

    #[test]
    fn transports_that_stay_in_their_process_or_carry_no_messages_are_told_from_others() {
        let carries = |transport: &str| Resource { transport: transport.into(), device: "x".into() }.carries_messages();
        assert!(["rc_mlx5", "ud_verbs", "srd", "tcp", "posix", "sysv"].into_iter().all(carries));
        assert!(!["self", "cma", "knem", "cuda_copy"].into_iter().any(carries));
    }
}
