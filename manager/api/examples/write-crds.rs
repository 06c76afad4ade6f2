//! Writes the CustomResourceDefinitions into the given folder: `make crd`.

use std::path::Path;

use anyhow::{Context, Result};
use ctrlmesh_manager_api::crds;

fn main() -> Result<()> {
    let folder = std::env::args_os().nth(1).context("name the folder to write into")?;
    for crd in crds::definitions() {
        let file = Path::new(&folder).join(crds::file_name(&crd));
        std::fs::write(&file, crds::to_yaml(&crd)?).with_context(|| format!("can't write {}", file.display()))?;
    }
    Ok(())
}
