use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use super::*;

fn artifact_of(text: &str) -> Artifact {
    Artifact::just_compiled(SealedFile::copy_of(text.as_bytes()).expect("sealed"))
}

fn cache_directory() -> (tempfile::TempDir, PathBuf) {
    let parent = tempfile::tempdir().expect("a directory");
    let path = parent.path().join("cache");
    (parent, path)
}

fn read(cache: &Cache, name: &str) -> Result<Vec<u8>, String> {
    match cache.read(name) {
        Lookup::Hit(artifact) => Ok(artifact.code().bytes().expect("readable").into_owned()),
        Lookup::Miss => Err("miss".into()),
        Lookup::Refused(reason) => Err(reason),
    }
}

fn file_mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").permissions().mode() & 0o777
}

#[test]
fn cached_artifact_is_read_back_after_restart() {
    let (_parent, path) = cache_directory();
    Cache::open(&path)
        .expect("a cache")
        .write("a", &artifact_of("code"))
        .expect("written");
    let cache = Cache::open(&path).expect("a cache");
    assert_eq!(read(&cache, "a"), Ok(b"code".to_vec()));
    assert_eq!(read(&cache, "b"), Err("miss".into()));
    cache.remove("a");
    assert_eq!(read(&cache, "a"), Err("miss".into()));
}

#[test]
fn directory_key_and_artifacts_are_private() {
    let (_parent, path) = cache_directory();
    Cache::open(&path)
        .expect("a cache")
        .write("a", &artifact_of("code"))
        .expect("written");
    assert_eq!(file_mode(&path), 0o700);
    assert_eq!(file_mode(&path.join(KEY_FILE)), 0o600);
    assert_eq!(file_mode(&path.join("a.cwasm")), 0o600);
    assert_eq!(
        fs::read_dir(&path).expect("it is there").count(),
        2,
        "no temporary file is left"
    );
}

#[test]
fn changed_byte_anywhere_is_refused() {
    let (_parent, path) = cache_directory();
    let cache = Cache::open(&path).expect("a cache");
    cache.write("a", &artifact_of("code")).expect("written");
    let file = path.join("a.cwasm");
    let whole = fs::read(&file).expect("it is there");
    for index in 0..whole.len() {
        let mut changed = whole.clone();
        changed[index] ^= 1;
        fs::write(&file, changed).expect("written");
        assert!(read(&cache, "a").expect_err("refused").contains("seal"), "byte {index}");
        assert!(!cache.has_artifact("a"), "byte {index}");
    }
    fs::write(&file, &whole[..whole.len() - 1]).expect("written");
    assert!(read(&cache, "a").is_err());
    fs::write(&file, &whole[..10]).expect("written");
    assert_eq!(read(&cache, "a"), Err("it is truncated".into()));
    assert!(!cache.has_artifact("a"));
    fs::write(&file, whole).expect("written");
    assert_eq!(read(&cache, "a"), Ok(b"code".to_vec()));
    assert!(cache.has_artifact("a") && !cache.has_artifact("b"));
}

/// It is longer than several steps of reading.
#[test]
fn long_artifact_is_read_back_unless_its_last_step_is_damaged() {
    let (_parent, path) = cache_directory();
    let cache = Cache::open(&path).expect("a cache");
    let code = "code".repeat(50_001);
    cache.write("a", &artifact_of(&code)).expect("written");
    assert!(read(&cache, "a") == Ok(code.into_bytes()));
    let file = path.join("a.cwasm");
    let whole = fs::read(&file).expect("it is there");
    let mut changed = whole.clone();
    *changed.last_mut().expect("a byte") ^= 1;
    let cut = &whole[..whole.len() - 1];
    let longer = [whole.as_slice(), b"c"].concat();
    for damaged in [changed.as_slice(), cut, longer.as_slice()] {
        fs::write(&file, damaged).expect("written");
        assert!(read(&cache, "a").expect_err("refused").contains("seal"));
    }
}

#[test]
fn artifact_on_heap_is_stored_like_one_in_memory_file() {
    let (_parent, path) = cache_directory();
    let cache = Cache::open(&path).expect("a cache");
    let mut code = MemoryFile::on_heap();
    code.write_all(b"code").expect("written");
    let artifact = Artifact::just_compiled(code.seal().expect("sealed"));
    cache.write("a", &artifact).expect("written");
    assert_eq!(read(&cache, "a"), Ok(b"code".to_vec()));
}

#[test]
fn file_that_is_too_large_is_refused_with_its_limit() {
    let (_parent, path) = cache_directory();
    let cache = Cache::open(&path).expect("a cache");
    // Sparse: it takes no room on disk.
    let file = File::create(path.join("a.cwasm")).expect("made");
    file.set_len(MAX_ARTIFACT_BYTES + SEAL_BYTES as u64 + 1).expect("set");
    assert_eq!(read(&cache, "a"), Err("it is larger than 134217760 bytes".into()));
}

#[test]
fn artifact_can_not_pass_for_another_plugins() {
    let (_parent, path) = cache_directory();
    let cache = Cache::open(&path).expect("a cache");
    cache.write("a", &artifact_of("code")).expect("written");
    fs::rename(path.join("a.cwasm"), path.join("b.cwasm")).expect("renamed");
    assert!(read(&cache, "b").expect_err("refused").contains("seal"));
}

#[test]
fn artifact_sealed_with_another_key_is_refused() {
    let ((_one, ours), (_two, theirs)) = (cache_directory(), cache_directory());
    Cache::open(&theirs)
        .expect("a cache")
        .write("a", &artifact_of("evil"))
        .expect("written");
    let cache = Cache::open(&ours).expect("a cache");
    fs::copy(theirs.join("a.cwasm"), ours.join("a.cwasm")).expect("copied");
    assert!(read(&cache, "a").expect_err("refused").contains("seal"));
}

#[test]
fn directory_that_others_may_write_to_is_refused() {
    let (_parent, path) = cache_directory();
    Cache::open(&path).expect("a cache");
    for open in [0o770, 0o707] {
        fs::set_permissions(&path, Permissions::from_mode(open)).expect("set");
        let refused = Cache::open(&path).map(|_| ()).expect_err("refused").to_string();
        assert!(refused.contains("others may write to it"), "{refused}");
    }
}

#[test]
fn key_is_refused_when_readable_by_others_or_broken() {
    let (_parent, path) = cache_directory();
    Cache::open(&path).expect("a cache");
    let key = path.join(KEY_FILE);
    fs::set_permissions(&key, Permissions::from_mode(0o640)).expect("set");
    assert!(
        Cache::open(&path)
            .map(|_| ())
            .expect_err("refused")
            .to_string()
            .contains("others may read the key")
    );
    fs::set_permissions(&key, Permissions::from_mode(0o600)).expect("set");
    fs::write(&key, b"short").expect("written");
    assert!(
        Cache::open(&path)
            .map(|_| ())
            .expect_err("refused")
            .to_string()
            .contains("5 bytes")
    );
}

#[test]
fn symbolic_link_in_place_of_directory_is_refused() {
    let (parent, path) = cache_directory();
    let real = parent.path().join("real");
    fs::create_dir(&real).expect("made");
    std::os::unix::fs::symlink(&real, &path).expect("linked");
    assert!(
        Cache::open(&path)
            .map(|_| ())
            .expect_err("refused")
            .to_string()
            .contains("symbolic link")
    );
}

#[test]
fn caches_opened_at_once_agree_on_key() {
    let (_parent, path) = cache_directory();
    std::thread::scope(|scope| {
        for number in 0..8 {
            let path = &path;
            scope.spawn(move || {
                let name = number.to_string();
                Cache::open(path)
                    .expect("a cache")
                    .write(&name, &artifact_of("code"))
                    .expect("written");
            });
        }
    });
    let cache = Cache::open(&path).expect("a cache");
    for number in 0..8 {
        assert_eq!(read(&cache, &number.to_string()), Ok(b"code".to_vec()));
    }
}

#[test]
fn longest_unused_artifacts_are_removed_first() {
    let (_parent, path) = cache_directory();
    let cache = Cache::open(&path).expect("a cache");
    let aged = |name: &str, seconds: u64| {
        let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
        let file = File::options()
            .append(true)
            .open(path.join(format!("{name}.cwasm")))
            .expect("it is there");
        file.set_modified(time).expect("set");
    };
    for number in 0..MAX_ARTIFACTS {
        let name = format!("n{number}");
        cache.write(&name, &artifact_of("code")).expect("written");
        aged(&name, number as u64 + 1);
    }
    // `n0` was used just now, so the second oldest has to go.
    read(&cache, "n0").expect("a hit");
    cache.write("new", &artifact_of("code")).expect("written");
    assert!(read(&cache, "n0").is_ok());
    assert_eq!(read(&cache, "n1"), Err("miss".into()));
    assert!(read(&cache, "new").is_ok());
}
