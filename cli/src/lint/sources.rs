//! The files that lint reads: those that are named, and those in named folders.

use std::path::{Path, PathBuf};

use crate::error::Error;

/// As in kubectl.
const STANDARD_INPUT: &str = "-";

/// How names of files in a folder end; a file that is named itself may have any name. As in kubectl.
const EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];

/// A file to read, or a path with the reason why there is none.
pub(super) type Source = Result<PathBuf, (PathBuf, Error)>;

pub(super) fn is_standard_input(path: &Path) -> bool {
    path == Path::new(STANDARD_INPUT)
}

/// The files of a path in the order of their names: the path itself unless it is a folder.
pub(super) fn source_files(path: &Path) -> Vec<Source> {
    if is_standard_input(path) || !path.is_dir() {
        return vec![Ok(path.to_owned())];
    }
    let mut files = Vec::new();
    let mut folders = vec![path.to_owned()];
    while let Some(folder) = folders.pop() {
        if let Err(error) = list_folder(&folder, &mut files, &mut folders) {
            files.push(Err((folder.clone(), Error::file("read", &folder)(error))));
        }
    }
    if files.is_empty() {
        files.push(Err((path.to_owned(), Error::NoFiles(path.to_owned()))));
    }
    let path_of = |source: &Source| match source {
        Ok(file) => file.clone(),
        Err((path, _)) => path.clone(),
    };
    files.sort_by_key(path_of);
    files
}

/// Adds files of a folder, and its subfolders. A link to a folder is not followed, so the search ends.
fn list_folder(folder: &Path, files: &mut Vec<Source>, folders: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        if entry.file_type()?.is_dir() {
            folders.push(path);
        } else if extension.is_some_and(|extension| EXTENSIONS.contains(&extension)) && !path.is_dir() {
            files.push(Ok(path));
        }
    }
    Ok(())
}
