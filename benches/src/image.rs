//! The sidecar as in its image: program and precompiled plugins belong to root, and it runs as a user who can't change them. A sidecar
//! accepts no other artifacts (docs/adr/0051-precompiled-artifacts.md).

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use ctrlmesh_contract::names::pod;
use ctrlmesh_plugins_builtin::builtin;
use tempfile::TempDir;

use crate::bench_env::BenchEnv;
use crate::chain::{Chain, SidecarFolder};
use crate::contestants::sidecar::{POLL, Sidecar};

/// Belongs to root, and everybody may look into it, unlike temporary folders.
const PARENT: &str = "/opt";

/// Removed when it is dropped.
pub(crate) struct ImageFolder(TempDir);

impl ImageFolder {
    /// A folder in `/opt` with this program and the four built-in plugins precompiled by it. `None` if this process is not root, and thus
    /// can't make files that the sidecar could not change.
    pub(crate) fn create(program: &Path) -> anyhow::Result<Option<Self>> {
        // The owner of this process's entry in /proc is the effective user; std has no geteuid.
        let is_root = fs::metadata("/proc/self")?.uid() == 0;
        is_root.then(|| Self::create_in(Path::new(PARENT), program)).transpose()
    }

    fn create_in(parent: &Path, program: &Path) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("ctrlmesh-bench-").tempdir_in(parent);
        let image = Self(folder.with_context(|| format!("can't create a folder in {}", parent.display()))?);
        make_readable(image.0.path())?;
        fs::copy(program, image.program())?;
        make_readable(&image.program())?;
        let plugins = image.0.path().join("plugins");
        for folder in [&plugins, &image.artifacts()] {
            fs::create_dir(folder)?;
            make_readable(folder)?;
        }
        let mut command = Command::new(program);
        command.arg("precompile").arg("--out").arg(image.artifacts());
        for plugin in builtin() {
            let file = plugins.join(format!("{}.wasm", plugin.name));
            fs::write(&file, plugin.bytes)?;
            command.arg(file);
        }
        let output = command.output()?;
        ensure!(
            output.status.success(),
            "`ctrlmesh-proxy precompile` failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(image)
    }

    /// Starts a sidecar with an empty compile cache, which must not compile anything.
    pub(crate) async fn start_cold(&self, env: &BenchEnv, chain: Chain) -> anyhow::Result<Sidecar> {
        let path = tempfile::Builder::new().tempdir_in(self.0.path())?.keep();
        make_readable(&path)?;
        let folder = SidecarFolder::create(path, &env.plain, chain)?;
        let cache = folder.cache_directory();
        fs::create_dir(&cache)?;
        fs::set_permissions(&cache, Permissions::from_mode(0o700))?;
        chown(&cache, Some(pod::UID), Some(pod::UID))?;
        let mut command = Command::new(self.program());
        command.uid(pod::UID).gid(pod::UID);
        command.arg("--precompiled-dir").arg(self.artifacts());
        let sidecar = Sidecar::start_command(command, &folder, POLL).await?;
        ensure!(
            count_artifacts(&cache)? == 0,
            "the sidecar compiled plugins although they are precompiled; its log says why"
        );
        Ok(sidecar)
    }

    fn program(&self) -> PathBuf {
        self.0.path().join("ctrlmesh-proxy")
    }

    fn artifacts(&self) -> PathBuf {
        self.0.path().join("precompiled")
    }
}

/// Lets everybody read a file or folder and nobody but its owner write to it, whatever the umask is.
fn make_readable(path: &Path) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(0o755))
}

/// Plugins in a compile cache.
fn count_artifacts(cache: &Path) -> io::Result<usize> {
    let mut artifacts = 0;
    for file in fs::read_dir(cache)? {
        artifacts += usize::from(file?.path().extension() == Some(OsStr::new("cwasm")));
    }
    Ok(artifacts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_can_read_the_folder_and_not_write_to_it() {
        let parent = tempfile::tempdir().unwrap();
        // This program stands for the sidecar, and makes no artifacts.
        let image = ImageFolder::create_in(parent.path(), Path::new("/bin/true")).unwrap();
        for path in [image.0.path(), image.program().as_path(), image.artifacts().as_path()] {
            let mode = fs::metadata(path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o755, "{}", path.display());
        }
        let plugins = fs::read_dir(image.0.path().join("plugins")).unwrap();
        assert_eq!(plugins.count(), builtin().len());
        drop(image);
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    }

    #[test]
    fn failed_precompile_is_an_error() {
        let parent = tempfile::tempdir().unwrap();
        let error = ImageFolder::create_in(parent.path(), Path::new("/bin/false"))
            .err()
            .unwrap();
        assert!(error.to_string().contains("precompile` failed"), "{error}");
    }

    #[test]
    fn artifacts_in_a_cache_are_counted() {
        let cache = tempfile::tempdir().unwrap();
        for name in ["seal.key", "a-1.cwasm", "b-1.cwasm"] {
            fs::write(cache.path().join(name), "").unwrap();
        }
        assert_eq!(count_artifacts(cache.path()).unwrap(), 2);
    }
}
