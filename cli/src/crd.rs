//! `ctrlmesh crd`: what an API server must know before it takes our objects.

use std::process::ExitCode;

use ctrlmesh_manager_api::crds;

use crate::error::Error;
use crate::print;

/// Prints all definitions as one stream of YAML documents.
pub(crate) fn run() -> Result<ExitCode, Error> {
    for crd in crds::all() {
        let yaml = crds::yaml(&crd).map_err(Box::new)?;
        print::line(&format!("---\n{}", yaml.trim_end()));
    }
    Ok(ExitCode::SUCCESS)
}
