//! Failures of `ctrlmesh plugin`: exit code, message, and that nothing is written. tests/guide covers success.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};

/// Exit code, standard output and standard error.
fn run_plugin_command(folder: &Path, arguments: &[&str]) -> Result<(Option<i32>, String, String)> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ctrlmesh"));
    let output = command.arg("plugin").args(arguments).current_dir(folder).output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((output.status.code(), text(&output.stdout), text(&output.stderr)))
}

/// Exit code and standard error.
fn plugin_errors(folder: &Path, arguments: &[&str]) -> Result<(Option<i32>, String)> {
    let (code, _, errors) = run_plugin_command(folder, arguments)?;
    Ok((code, errors))
}

fn sdk_folder() -> String {
    format!("{}/../sdk", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn new_overwrites_nothing_and_refuses_bad_name_or_sdk() -> Result<()> {
    let folder = tempfile::tempdir()?;
    std::fs::create_dir(folder.path().join("taken"))?;
    for (name, sdk, says) in [
        ("taken", &*sdk_folder(), "choose another name"),
        ("No_Name", &*sdk_folder(), "lower-case letters"),
        ("ctrlmesh-sdk", &*sdk_folder(), "not the name of the SDK"),
        ("fine", "/nonexistent", "name the folder `sdk` of a clone"),
    ] {
        let (code, errors) = plugin_errors(folder.path(), &["new", name, "--sdk", sdk])?;
        assert_eq!(code, Some(1), "{name}");
        assert!(errors.contains(says), "{errors}");
    }
    assert_eq!(std::fs::read_dir(folder.path())?.count(), 1);
    assert_eq!(std::fs::read_dir(folder.path().join("taken"))?.count(), 0);
    Ok(())
}

#[test]
fn new_names_the_manifests_that_it_looked_for() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let here = folder.path().canonicalize()?;
    std::fs::create_dir(here.join("other"))?;
    std::fs::write(here.join("other/Cargo.toml"), "[package]\nname = \"other\"\n")?;
    for wrong in ["missing", "other"] {
        let (code, errors) = plugin_errors(&here, &["new", "fine", "--sdk", wrong])?;
        assert_eq!(code, Some(1), "{errors}");
        for manifest in ["sdk/Cargo.toml", "Cargo.toml"] {
            let path = here.join(wrong).join(manifest).display().to_string();
            assert!(errors.contains(&path), "{path} is missing in {errors}");
        }
        assert!(errors.contains("is the manifest of ctrlmesh-sdk"), "{errors}");
    }
    Ok(())
}

#[test]
fn new_takes_sdk_from_checkout_only_when_it_is_named() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let sdk = folder.path().join("sdk");
    std::fs::create_dir(&sdk)?;
    std::fs::write(sdk.join("Cargo.toml"), "[package]\nname = \"ctrlmesh-sdk\"\n")?;
    let inner = folder.path().join("plugins");
    std::fs::create_dir(&inner)?;
    let manifest = |arguments: &[&str]| -> Result<String> {
        assert_eq!(plugin_errors(&inner, arguments)?, (Some(0), String::new()));
        let name = arguments.get(1).context("a name")?;
        Ok(std::fs::read_to_string(inner.join(name).join("Cargo.toml"))?)
    };
    let released = manifest(&["new", "released"])?;
    assert!(released.contains("ctrlmesh-sdk = \"0.1\"\n"), "{released}");
    assert!(!released.contains("path"), "{released}");
    let (_, printed, _) = run_plugin_command(&inner, &["new", "again"])?;
    let advice = "\n  rm -r again\n  ctrlmesh plugin new again --sdk PATH\n";
    assert!(
        printed.contains("is not on crates.io") && printed.contains(advice) && !printed.contains("cargo test"),
        "{printed}"
    );
    let found = folder.path().canonicalize()?.join("sdk");
    let path = format!("path = {:?}", found.display().to_string());
    // The checkout around the SDK may be named as well.
    for (name, sdk) in [("local", "../sdk"), ("around", "..")] {
        let local = manifest(&["new", name, "--sdk", sdk])?;
        assert_eq!(local.matches(&path).count(), 2, "{local}");
    }
    Ok(())
}

#[test]
fn new_writes_the_cases_file_that_its_last_step_names() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (code, printed, errors) = run_plugin_command(folder.path(), &["new", "mine", "--sdk", &sdk_folder()])?;
    assert_eq!((code, &*errors), (Some(0), ""), "{printed}");
    let (_, cases) = printed
        .trim_end()
        .rsplit_once(" --cases ")
        .context("a step with cases")?;
    let text = std::fs::read_to_string(folder.path().join("mine").join(cases))?;
    assert!(text.contains("readOnlyNamespaces: [prod-*]"), "{text}");
    Ok(())
}

#[test]
fn inspect_names_unreadable_file() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (code, errors) = plugin_errors(folder.path(), &["inspect", "nothing.wasm"])?;
    assert_eq!(code, Some(1));
    assert!(errors.contains("cannot read nothing.wasm"), "{errors}");
    Ok(())
}

const ASKED: &str = "requests: [{request: GET /api/v1/pods, expect: proceed}]\n";
const SETTINGS: &str = "settings: {limits: [{selector: {matchLabels: {a: b}}}]}\n";

#[test]
fn test_asks_plugin_about_requests() -> Result<()> {
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("a.wasm"), ctrlmesh_plugins_builtin::SHARD_SELECTOR)?;
    let good = format!(
        "{SETTINGS}requests:\n- {{request: GET /api/v1/namespaces/x/pods, expect: edit}}\n- {{request: GET /healthz, expect: not asked}}\n"
    );
    std::fs::write(folder.path().join("good.yaml"), &good)?;
    std::fs::write(
        folder.path().join("wrong.yaml"),
        good.replace("expect: edit", "expect: refuse 403"),
    )?;
    let test = |cases: &str| run_plugin_command(folder.path(), &["test", "a.wasm", "--cases", cases]);
    let (code, printed, errors) = test("good.yaml")?;
    assert_eq!((code, &*errors), (Some(0), ""), "{printed}");
    for line in [
        "ok    GET /api/v1/namespaces/x/pods: edit: label selector a=b",
        "ok    GET /healthz: not asked: ",
        "all 2 requests got what is expected",
    ] {
        assert!(printed.contains(line), "{line} is missing in {printed}");
    }
    let (code, printed, _) = test("wrong.yaml")?;
    assert_eq!(code, Some(1), "{printed}");
    let line = "FAIL  GET /api/v1/namespaces/x/pods: expected refuse 403, but it says edit: label selector a=b";
    assert!(
        printed.contains(line) && printed.contains("1 of 2 requests"),
        "{printed}"
    );
    Ok(())
}

#[test]
fn test_gives_plugin_its_note_when_it_decides_on_objects() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let scripted = ctrlmesh_plugins_builtin::guests::get("scripted").context("the guest")?;
    std::fs::write(folder.path().join("a.wasm"), scripted)?;
    let cases = "settings:\n  onRequest: [{note: 7, then: {proceed: [{askAboutObjects: []}]}}]\n  onObjects: {note: 7}\n\
                 requests:\n- {request: GET /api/v1/pods, expect: edit, objects: [{namespace: a, name: x}], keeps: [a/x]}\n";
    std::fs::write(folder.path().join("cases.yaml"), cases)?;
    let (code, printed, errors) = run_plugin_command(folder.path(), &["test", "a.wasm", "--cases", "cases.yaml"])?;
    let line = "ok    GET /api/v1/pods: edit: objects that it keeps; keeps a/x";
    assert!(code == Some(0) && printed.contains(line), "{printed}\n{errors}");
    Ok(())
}

#[test]
fn test_fails_with_reason_when_sidecar_would_refuse_plugin() -> Result<()> {
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("a.wasm"), ctrlmesh_plugins_builtin::SHARD_SELECTOR)?;
    std::fs::write(folder.path().join("none.wasm"), "#!/bin/sh")?;
    for (file, cases, says) in [
        ("none.wasm", format!("{SETTINGS}{ASKED}"), "not WebAssembly"),
        ("a.wasm", format!("settings: {{limts: []}}\n{ASKED}"), "limts"),
        ("a.wasm", format!("{SETTINGS}requests: []\n"), "names no request"),
        (
            "a.wasm",
            format!("{SETTINGS}{ASKED}reqests: []\n"),
            "did you mean requests",
        ),
        (
            "a.wasm",
            format!("{SETTINGS}requests: [{{request: nonsense, expect: edit}}]\n"),
            "write it like GET /api/v1/pods",
        ),
        (
            "a.wasm",
            format!("{SETTINGS}requests: [{{request: GET /api/v1/pods}}]\n"),
            "expect",
        ),
        ("a.wasm", "requests: 7\n".to_owned(), "cases.yaml has "),
    ] {
        std::fs::write(folder.path().join("cases.yaml"), &cases)?;
        let (code, errors) = plugin_errors(folder.path(), &["test", file, "--cases", "cases.yaml"])?;
        assert_eq!(code, Some(1), "{cases}");
        assert!(errors.contains(says), "{says}: {errors}");
    }
    Ok(())
}

#[test]
fn test_does_not_ask_for_settings_when_file_cannot_be_loaded() -> Result<()> {
    let folder = tempfile::tempdir()?;
    for (file, content, says) in [
        (
            "Cargo.toml",
            &b"[package]\n"[..],
            "ctrlmesh: Cargo.toml is not WebAssembly: ",
        ),
        ("empty.wasm", &b""[..], "ctrlmesh: empty.wasm is not WebAssembly: "),
        ("module.wasm", &b"\0asm\x01\0\0\0"[..], "is a core WebAssembly module"),
    ] {
        std::fs::write(folder.path().join(file), content)?;
        let (code, errors) = plugin_errors(folder.path(), &["test", file])?;
        assert_eq!(code, Some(1), "{errors}");
        assert!(
            errors.contains(says) && !errors.contains("without settings"),
            "{errors}"
        );
    }
    Ok(())
}

/// Kills the process when the test ends.
struct Running(std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn api_server_listens_on_given_port_and_prints_its_address() -> Result<()> {
    let folder = tempfile::tempdir()?;
    // The port is free now, and no other test here binds ports by number.
    let port = std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port()
        .to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ctrlmesh"));
    command.args(["plugin", "api-server", "--kubeconfig", "kubeconfig", "--port", &port]);
    let server = command.current_dir(folder.path()).stdout(Stdio::piped()).spawn()?;
    let mut server = Running(server);
    let mut lines = BufReader::new(server.0.stdout.take().context("standard output")?).lines();
    let line = lines.next().context("a line")??;
    let url = format!("https://127.0.0.1:{port}");
    assert!(
        line.contains(&format!("at {url}; its kubeconfig is kubeconfig")),
        "{line}"
    );
    let kubeconfig = std::fs::read_to_string(folder.path().join("kubeconfig"))?;
    assert!(kubeconfig.contains(&url), "{kubeconfig}");
    std::net::TcpStream::connect(format!("127.0.0.1:{port}"))?;
    Ok(())
}

#[test]
fn api_server_does_not_overwrite_a_kubeconfig_of_somebody_else() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("config");
    std::fs::write(&file, "apiVersion: v1\nkind: Config\n")?;
    let output = Command::new(env!("CARGO_BIN_EXE_ctrlmesh"))
        .args(["plugin", "api-server", "--kubeconfig"])
        .arg(&file)
        .output()?;
    assert_eq!(output.status.code(), Some(1));
    let problem = String::from_utf8_lossy(&output.stderr);
    assert!(problem.contains("name another file, or remove it"), "{problem}");
    assert_eq!(std::fs::read_to_string(&file)?, "apiVersion: v1\nkind: Config\n");
    Ok(())
}
