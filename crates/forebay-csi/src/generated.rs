//! What is made of `proto/`: messages, clients and services. tests/generated.rs makes it anew and compares.
//!
//! It is kept in the tree, so building this crate needs no `protoc`. The files are included, and not modules of their
//! own, for rustfmt to leave them as they are made.

/// Container Storage Interface 1.11: identity and node.
#[allow(missing_docs, unreachable_pub, rustdoc::all, clippy::all)]
pub mod csi {
    include!("generated/csi.v1.rs");
}

/// How the kubelet asks a plugin who it is.
#[allow(missing_docs, unreachable_pub, rustdoc::all, clippy::all)]
pub mod registration {
    include!("generated/pluginregistration.rs");
}

mod secret {
    //! Requests with secrets are shown without them: a log of a request is one slip away otherwise.

    use std::fmt;

    use super::csi::{NodeExpandVolumeRequest, NodePublishVolumeRequest, NodeStageVolumeRequest};

    impl fmt::Debug for NodeStageVolumeRequest {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let mut shown = f.debug_struct("NodeStageVolumeRequest");
            shown.field("volume_id", &self.volume_id).field("staging_target_path", &self.staging_target_path);
            shown.finish_non_exhaustive()
        }
    }

    impl fmt::Debug for NodePublishVolumeRequest {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let mut shown = f.debug_struct("NodePublishVolumeRequest");
            shown.field("volume_id", &self.volume_id).field("target_path", &self.target_path);
            shown.finish_non_exhaustive()
        }
    }

    impl fmt::Debug for NodeExpandVolumeRequest {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let mut shown = f.debug_struct("NodeExpandVolumeRequest");
            shown.field("volume_id", &self.volume_id).field("volume_path", &self.volume_path);
            shown.finish_non_exhaustive()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::csi::{NodePublishVolumeRequest, NodeStageVolumeRequest};

    #[test]
    fn a_request_is_shown_without_its_secrets() {
        let secrets = std::collections::HashMap::from([("AWS_SECRET_ACCESS_KEY".to_owned(), "hunter2".to_owned())]);
        let stage = NodeStageVolumeRequest { volume_id: "v".into(), secrets: secrets.clone(), ..Default::default() };
        let publish = NodePublishVolumeRequest { volume_id: "v".into(), secrets, ..Default::default() };
        let shown = format!("{stage:?} {publish:?}");
        assert!(shown.contains("\"v\"") && !shown.contains("hunter2") && !shown.contains("AWS_"), "{shown}");
    }
}
