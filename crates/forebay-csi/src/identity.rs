//! The identity service: who the driver is, and whether it can mount.

use std::collections::HashMap;
use std::path::Path;

use tonic::{Request, Response, Status};

use crate::generated::csi::identity_server::Identity;
use crate::generated::csi::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
    ProbeRequest, ProbeResponse,
};

/// Without it nothing can be mounted.
const DEVICE: &str = "/dev/fuse";

/// The identity service.
#[derive(Debug)]
pub(crate) struct IdentityService {
    pub(crate) driver: String,
    pub(crate) version: String,
}

#[tonic::async_trait]
impl Identity for IdentityService {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        let (name, vendor_version) = (self.driver.clone(), self.version.clone());
        Ok(Response::new(GetPluginInfoResponse { name, vendor_version, manifest: HashMap::new() }))
    }

    /// There is no controller: volumes are buckets, and nothing has to be made or attached.
    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        Ok(Response::new(GetPluginCapabilitiesResponse::default()))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        Ok(Response::new(ProbeResponse { ready: Some(Path::new(DEVICE).exists()) }))
    }
}
