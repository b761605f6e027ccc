//! How the kubelet learns of the driver: it finds a socket in its directory for plugins, asks there, and says what came
//! of it.
//!
//! With other drivers a container of its own does this (`node-driver-registrar`).

use tonic::{Request, Response, Status};
use tracing::{error, info};

use crate::generated::registration::registration_server::Registration;
use crate::generated::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};

/// The kubelet's word for plugins of this kind.
const KIND: &str = "CSIPlugin";
/// The version of CSI, as the kubelet compares it.
const VERSION: &str = "1.0.0";

/// The registration service.
#[derive(Debug)]
pub(crate) struct RegistrationService {
    pub(crate) driver: String,
    /// Where the driver is called, as a path on the node.
    pub(crate) endpoint: String,
}

#[tonic::async_trait]
impl Registration for RegistrationService {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: KIND.to_owned(),
            name: self.driver.clone(),
            endpoint: self.endpoint.clone(),
            supported_versions: vec![VERSION.to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        if status.plugin_registered {
            info!(driver = self.driver, "registered with the kubelet");
        } else {
            error!(driver = self.driver, why = status.error, "the kubelet does not register this driver");
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
