//! Writes what the manager may do into the folder that is named: `make rbac`.

use std::path::Path;

use anyhow::{Context, Result};
use ctrlmesh_manager::process::rbac;

fn main() -> Result<()> {
    let folder = std::env::args_os().nth(1).context("name the folder to write into")?;
    for part in rbac::PARTS {
        let file = Path::new(&folder).join(part.file);
        std::fs::write(&file, rbac::to_yaml(part)?).with_context(|| format!("can't write {}", file.display()))?;
    }
    Ok(())
}
