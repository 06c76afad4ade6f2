//! Writes what the manager may do into the file that is named: `make rbac`.

use anyhow::{Context, Result};
use ctrlmesh_manager::rbac;

fn main() -> Result<()> {
    let file = std::env::args_os().nth(1).context("name the file to write")?;
    std::fs::write(&file, rbac::yaml()?).with_context(|| format!("can't write {}", file.display()))
}
