//! The files that lint reads: those that are named, and those in named folders.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// As in kubectl.
const STANDARD_INPUT: &str = "-";

/// How names of files in a folder end; a file that is named itself may have any name. As in kubectl.
const EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];

/// Largest file that is read. 8,000 exported objects have about 2 MB.
const MAX_BYTES: usize = 32 << 20;

/// A file to read, or a path with the reason why there is none.
pub(super) type Source = Result<SourceFile, (PathBuf, Error)>;

#[derive(Debug, Clone)]
pub(super) struct SourceFile {
    pub(super) path: PathBuf,
    /// Whether the user named the file itself, and not a folder.
    pub(super) is_named: bool,
}

impl SourceFile {
    pub(super) fn named(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            is_named: true,
        }
    }
}

/// The text of a file, or of standard input.
pub(super) fn read_source(file: &Path) -> Result<String, Error> {
    let mut bytes = Vec::new();
    let limit = MAX_BYTES as u64 + 1;
    let read = if is_standard_input(file) {
        std::io::stdin().lock().take(limit).read_to_end(&mut bytes)
    } else {
        File::open(file).and_then(|file| file.take(limit).read_to_end(&mut bytes))
    };
    read.map_err(Error::file("read", file))?;
    if bytes.len() > MAX_BYTES {
        return Err(Error::FileTooLarge {
            megabytes: MAX_BYTES >> 20,
        });
    }
    String::from_utf8(bytes).map_err(|_| Error::NotText)
}

pub(super) fn is_standard_input(path: &Path) -> bool {
    path == Path::new(STANDARD_INPUT)
}

/// The files of a path in the order of their names: the path itself unless it is a folder.
pub(super) fn source_files(path: &Path) -> Vec<Source> {
    if is_standard_input(path) || !path.is_dir() {
        return vec![Ok(SourceFile::named(path))];
    }
    let mut files = Vec::new();
    let mut folders = vec![path.to_owned()];
    while let Some(folder) = folders.pop() {
        if let Err(error) = list_folder(&folder, &mut files, &mut folders) {
            files.push(Err((folder.clone(), Error::file("read", &folder)(error))));
        }
    }
    if files.is_empty() {
        files.push(Err((path.to_owned(), Error::NoFiles)));
    }
    let path_of = |source: &Source| match source {
        Ok(file) => file.path.clone(),
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
            files.push(Ok(SourceFile { path, is_named: false }));
        }
    }
    Ok(())
}
