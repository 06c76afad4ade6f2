//! Files in memory that nobody can change once they are written; they hold artifacts.
//!
//! The allocator would keep the memory of a dropped `Vec`, and wasmtime would copy its bytes. A memory file is mapped, and its memory is
//! returned when nobody has it open or mapped. The seals here are the kernel's (`F_SEAL_WRITE` in fcntl(2)), not those of the cache. Where
//! the kernel does not know memory files (ENOSYS), the bytes are on the heap. They are there too if the kernel denies memory files, but
//! then wasmtime cannot make its own for linear memories, and plugins do not start. Why: docs/adr/0058-sealed-memory-files.md.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use tracing::warn;

/// Size of the steps in which artifacts are read, so that they are never on the heap as a whole.
const STEP_BYTES: usize = 64 << 10;

/// Name of the files in `/proc/<pid>/maps`.
const NAME: &str = "artifact";

enum Store {
    File(File),
    Heap(Vec<u8>),
}

/// A file that is still written.
pub(crate) struct MemoryFile(Store);

impl MemoryFile {
    /// An empty file; on the heap if the kernel gives none.
    pub(crate) fn create() -> Self {
        match create_in_kernel() {
            Ok(file) => Self(Store::File(file)),
            Err(error) => {
                warn!(%error, "failed to create a memory file; holding the artifact on the heap");
                Self::on_heap()
            }
        }
    }

    /// An empty file on the heap.
    pub(crate) const fn on_heap() -> Self {
        Self(Store::Heap(Vec::new()))
    }

    pub(crate) fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.0 {
            Store::File(file) => file.write_all(bytes),
            Store::Heap(heap) => heap.write_all(bytes),
        }
    }

    /// Appends everything that can be read, and returns how many bytes that was.
    pub(crate) fn write_from(&mut self, from: impl Read) -> io::Result<u64> {
        let mut length = 0;
        read_in_steps(from, |step| {
            length += step.len() as u64;
            self.write_all(step)
        })?;
        Ok(length)
    }

    /// Ends writing for everybody who has the file open or opens it later, also for this process.
    pub(crate) fn seal(self) -> io::Result<SealedFile> {
        let size = match &self.0 {
            Store::File(file) => {
                let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
                rustix::fs::fcntl_add_seals(file, seals)?;
                usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?
            }
            Store::Heap(heap) => heap.len(),
        };
        Ok(SealedFile { store: self.0, size })
    }
}

/// A file that nobody can change. Only [`MemoryFile::seal`] makes one.
pub(crate) struct SealedFile {
    store: Store,
    size: usize,
}

impl SealedFile {
    /// A file with these bytes.
    pub(crate) fn copy_of(bytes: &[u8]) -> io::Result<Self> {
        let mut file = MemoryFile::create();
        file.write_all(bytes)?;
        file.seal()
    }

    /// Length of the contents in bytes.
    pub(crate) const fn size(&self) -> usize {
        self.size
    }

    /// A path by which this process can open the file as long as `self` exists. `None`: the bytes are on the heap, or `/proc` does not
    /// lead to the file.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        let Store::File(file) = &self.store else {
            return None;
        };
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        // If something else is mounted there, the path could lead to any file.
        let (named, own) = (fs::metadata(&path).ok()?, file.metadata().ok()?);
        ((named.dev(), named.ino()) == (own.dev(), own.ino())).then_some(path)
    }

    /// Visits the bytes from the first to the last, one step after the other.
    pub(crate) fn visit(&self, mut visit: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        match &self.store {
            Store::File(file) => read_in_steps(FromStart { file, offset: 0 }, visit),
            Store::Heap(heap) => visit(heap.as_slice()),
        }
    }

    /// All bytes at once, which copies a file to the heap.
    pub(crate) fn bytes(&self) -> io::Result<Cow<'_, [u8]>> {
        if let Store::Heap(heap) = &self.store {
            return Ok(Cow::Borrowed(heap.as_slice()));
        }
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(self.size)?;
        self.visit(|step| {
            bytes.extend_from_slice(step);
            Ok(())
        })?;
        Ok(Cow::Owned(bytes))
    }
}

/// Reads a file without its position, which all who have it open share.
struct FromStart<'a> {
    file: &'a File,
    offset: u64,
}

impl Read for FromStart<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.file.read_at(buffer, self.offset)?;
        self.offset += length as u64;
        Ok(length)
    }
}

/// The file is marked as one that is never executed as a program, because Linux refuses others if `vm.memfd_noexec` is 2. Its code can be
/// mapped all the same. Before 6.3 Linux did not know that mark.
fn create_in_kernel() -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let created = rustix::fs::memfd_create(NAME, flags | MemfdFlags::NOEXEC_SEAL).or_else(|error| {
        if error == Errno::INVAL {
            return rustix::fs::memfd_create(NAME, flags);
        }
        Err(error)
    });
    Ok(File::from(created?))
}

/// Reads to the end, one step after the other.
pub(crate) fn read_in_steps(mut from: impl Read, mut visit: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    let mut step = vec![0; STEP_BYTES];
    loop {
        match from.read(&mut step) {
            Ok(0) => return Ok(()),
            Ok(length) => visit(step.get(..length).unwrap_or_default())?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three whole steps, and a part of one.
    fn long_bytes() -> Vec<u8> {
        (0..3 * STEP_BYTES + 5).map(|index| (index % 251) as u8).collect()
    }

    fn denied<T>(result: io::Result<T>) -> bool {
        result.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
    }

    #[test]
    fn file_holds_what_was_written_in_kernel_and_on_heap() {
        let bytes = long_bytes();
        for (mut file, is_in_kernel) in [(MemoryFile::create(), true), (MemoryFile::on_heap(), false)] {
            let (first, rest) = bytes.split_at(1000);
            file.write_all(first).expect("written");
            assert_eq!(file.write_from(rest).expect("written"), rest.len() as u64);
            let file = file.seal().expect("sealed");
            assert_eq!((file.size(), file.path().is_some()), (bytes.len(), is_in_kernel));
            // Twice: reading leaves the position alone.
            for _ in 0..2 {
                assert!(*file.bytes().expect("readable") == bytes[..]);
            }
        }
        let copy = SealedFile::copy_of(&bytes).expect("sealed");
        assert!(*copy.bytes().expect("readable") == bytes[..]);
    }

    #[test]
    fn bytes_that_do_not_fit_into_memory_are_an_error() {
        let mut file = SealedFile::copy_of(b"code").expect("sealed");
        file.size = usize::MAX;
        let error = file.bytes().expect_err("too many");
        assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
    }

    #[test]
    fn file_is_visited_in_steps() {
        let file = SealedFile::copy_of(&long_bytes()).expect("sealed");
        let mut lengths = Vec::new();
        file.visit(|step| {
            lengths.push(step.len());
            Ok(())
        })
        .expect("readable");
        assert_eq!(lengths, [STEP_BYTES, STEP_BYTES, STEP_BYTES, 5]);
        let stopped = file.visit(|_| Err(io::Error::other("stop")));
        assert_eq!(stopped.expect_err("stopped").to_string(), "stop");
    }

    #[test]
    fn sealed_file_can_not_be_changed_by_anybody_who_opens_it() {
        let file = SealedFile::copy_of(b"code").expect("sealed");
        let path = file.path().expect("a path");
        let mut opened = File::options().write(true).open(&path).expect("opened");
        assert!(denied(opened.write_all(b"evil")));
        assert!(denied(opened.set_len(0)));
        assert!(denied(opened.set_len(100)));
        let Store::File(own) = &file.store else {
            panic!("it is on the heap");
        };
        let mut duplicate = own.try_clone().expect("a duplicate");
        assert!(denied(duplicate.write_all(b"evil")), "at the end");
        assert!(denied(duplicate.write_at(b"evil", 0)));
        let sealed_again = rustix::fs::fcntl_add_seals(own, SealFlags::WRITE);
        assert!(denied(sealed_again.map_err(io::Error::from)));
        assert_eq!(&*file.bytes().expect("readable"), b"code");
    }

    #[test]
    fn file_that_is_not_sealed_yet_can_be_changed() {
        let mut file = MemoryFile::create();
        file.write_all(b"code").expect("written");
        let Store::File(own) = &file.0 else {
            panic!("it is on the heap");
        };
        let path = format!("/proc/self/fd/{}", own.as_raw_fd());
        let opened = File::options().write(true).open(path).expect("opened");
        opened.write_all_at(b"evil", 0).expect("written");
        let file = file.seal().expect("sealed");
        assert_eq!(&*file.bytes().expect("readable"), b"evil");
        assert!(denied(opened.write_all_at(b"code", 0)));
    }
}
