//! `ctrlmesh crd`: prints the CustomResourceDefinitions that an API server needs.

use std::process::ExitCode;

use ctrlmesh_manager_api::crds;

use crate::error::Error;
use crate::print;

pub(crate) fn run() -> Result<ExitCode, Error> {
    for crd in crds::definitions() {
        let yaml = crds::to_yaml(&crd).map_err(Box::new)?;
        print::line(&format!("---\n{}", yaml.trim_end()));
    }
    Ok(ExitCode::SUCCESS)
}
