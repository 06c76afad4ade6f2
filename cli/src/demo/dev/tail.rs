//! Shows what the programs write into their logs.

use std::collections::BTreeMap;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::task::JoinSet;

use crate::print;

/// How often logs are looked at.
const EVERY: Duration = Duration::from_millis(250);

/// Prints each new line of every `<name>.log` in a directory, until the set is dropped.
pub(super) fn follow(directory: &Path) -> JoinSet<()> {
    let directory = directory.to_owned();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let (mut tick, mut logs) = (tokio::time::interval(EVERY), BTreeMap::new());
        loop {
            tick.tick().await;
            // A log that can't be read now may be read later.
            for (name, line) in fresh_lines(&directory, &mut logs).unwrap_or_default() {
                print::line(&format!("{name:<12} | {line}"));
            }
        }
    });
    tasks
}

/// The whole lines that were added since the last time, with the log's name. A log that has become shorter belongs to a new process.
fn fresh_lines(directory: &Path, read: &mut BTreeMap<PathBuf, u64>) -> std::io::Result<Vec<(String, String)>> {
    let mut fresh = Vec::new();
    let entries = std::fs::read_dir(directory)?.flatten().map(|entry| entry.path());
    let mut logs: Vec<_> = entries
        .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
        .collect();
    logs.sort();
    for path in logs {
        let mut file = std::fs::File::open(&path)?;
        let length = file.metadata()?.len();
        let name = path
            .file_stem()
            .map(|stem| stem.to_string_lossy().into_owned())
            .unwrap_or_default();
        let position = read.entry(path).or_default();
        if length < *position {
            *position = 0;
        }
        file.seek(SeekFrom::Start(*position))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        bytes.truncate(end);
        *position += end as u64;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        fresh.extend(text.lines().map(|line| (name.clone(), line.to_owned())));
    }
    Ok(fresh)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_shown_once_and_whole_also_of_a_restarted_program() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("manager.log");
        let mut read = BTreeMap::new();
        let mut lines = || {
            let fresh = fresh_lines(directory.path(), &mut read).unwrap();
            fresh
                .into_iter()
                .map(|(name, line)| format!("{name}: {line}"))
                .collect::<Vec<_>>()
        };
        std::fs::write(&log, "one\ntw").unwrap();
        assert_eq!(lines(), ["manager: one"]);
        std::fs::write(&log, "one\ntwo\n").unwrap();
        assert_eq!(lines(), ["manager: two"]);
        std::fs::write(&log, "new\n").unwrap();
        assert_eq!(lines(), ["manager: new"]);
        assert_eq!(lines(), Vec::<String>::new());
    }
}
