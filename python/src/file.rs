//! A version of a file that is open.

use std::sync::Arc;

use forebay_client::OpenFile;
use forebay_session::fork::OfProcess;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// A version of a file that is open in this process.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct File {
    file: OfProcess<Arc<OpenFile>>,
    replicas: u8,
}

impl File {
    pub(crate) fn new(file: Arc<OpenFile>, replicas: u8) -> Self {
        Self { file: OfProcess::new(file), replicas }
    }

    /// It, if this process opened it.
    pub(crate) fn get(&self) -> Option<&Arc<OpenFile>> {
        self.file.get()
    }
}

#[pymethods]
impl File {
    /// What another process opens the same version by: its description and the number of replicas. `None` in a forked child.
    fn description<'py>(&self, py: Python<'py>) -> Option<(Bound<'py, PyBytes>, u8)> {
        let file = self.file.get()?;
        Some((PyBytes::new(py, &file.version().encode()), self.replicas))
    }
}
