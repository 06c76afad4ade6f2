//! The objects in docs, plugin READMEs and the README are valid for the manager, and a sidecar that users add by hand is like an
//! injected one.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use ctrlmesh_tests::repository_root;
use serde_json::Value;

/// The contents of all YAML blocks in a document.
fn yaml_blocks(text: &str) -> Vec<String> {
    let mut blocks: Vec<String> = Vec::new();
    let mut is_in = false;
    for line in text.lines() {
        match line.trim_start() {
            "```yaml" => {
                blocks.push(String::new());
                is_in = true;
            }
            fence if fence.starts_with("```") => is_in = false,
            _ if is_in => {
                let block = blocks.last_mut().unwrap();
                block.push_str(line);
                block.push('\n');
            }
            _ => {}
        }
    }
    blocks
}

fn document_paths() -> Vec<PathBuf> {
    let root = repository_root();
    let mut found = vec![root.join("README.md")];
    let files = |folder: PathBuf| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    found.extend(files(root.join("docs")).filter(|file| file.extension().is_some_and(|it| it == "md")));
    let readmes = files(root.join("plugins")).map(|plugin| plugin.join("README.md"));
    found.extend(readmes.filter(|file| file.is_file()));
    found
}

#[test]
fn objects_in_documents_are_valid() {
    let mut kinds = Vec::new();
    for file in document_paths() {
        for block in yaml_blocks(&fs::read_to_string(&file).unwrap()) {
            // Parts of objects, and chains, are checked by other tests.
            if !block.contains("apiVersion: ctrlmesh") {
                continue;
            }
            let objects: Vec<Value> = serde_saphyr::from_multiple(&block).unwrap();
            for object in objects.iter().filter(|object| object["kind"].is_string()) {
                let findings = ctrlmesh_manager_planner::validate(object);
                let mistakes = findings.mistakes;
                assert!(mistakes.list().is_empty(), "{}: {mistakes}\n{block}", file.display());
                kinds.push(object["kind"].as_str().unwrap().to_owned());
            }
        }
    }
    for kind in ["ShardingConfig", "CircuitBreaker", "FaultInjection"] {
        assert!(kinds.iter().any(|known| known == kind), "no {kind} is shown: {kinds:?}");
    }
}

/// The pod that injection makes of a Deployment's pod, as the tests of injection have it.
const INJECTED_POD: &str = "manager/inject/src/testdata/01-deployment.after.yaml";

fn parse_yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap()
}

fn named<'a>(list: &'a Value, name: &str) -> &'a Value {
    let mut items = list.as_array().unwrap().iter();
    let item = items.find(|item| item["name"] == name);
    item.unwrap_or_else(|| panic!("no {name} in {list}"))
}

/// Arguments of a sidecar, and its variables as the arguments that they stand for. The key differs in each cluster, and the log's
/// settings have defaults.
fn sidecar_settings(container: &Value) -> BTreeSet<String> {
    let arguments = container["args"].as_array().unwrap().iter();
    let arguments = arguments.map(|argument| argument.as_str().unwrap().to_owned());
    let variables = container["env"].as_array().unwrap().iter().filter_map(|variable| {
        let name = variable["name"].as_str()?.strip_prefix("CTRLMESH_")?;
        let flag = name.to_lowercase().replace('_', "-");
        Some(format!("--{flag}={}", variable["value"].as_str()?))
    });
    let mut settings: BTreeSet<String> = arguments.chain(variables).collect();
    settings.retain(|setting| !setting.starts_with("--public-key=") && !setting.starts_with("--log"));
    settings
}

#[test]
fn sidecar_added_by_hand_is_like_an_injected_one() {
    let root = repository_root();
    let page = fs::read_to_string(root.join("docs/manager.md")).unwrap();
    let block = yaml_blocks(&page)
        .into_iter()
        .find(|block| block.contains("initContainers:"));
    let by_hand = parse_yaml(&block.unwrap())["spec"]["template"].take();
    let injected = parse_yaml(&fs::read_to_string(root.join(INJECTED_POD)).unwrap());

    let annotation = |pod: &Value, name: &str| {
        let key = format!("ctrlmesh.kusionstack.io/{name}");
        parse_yaml(pod["metadata"]["annotations"][key].as_str().unwrap())
    };
    for name in ["injected", "kubeconfig"] {
        assert_eq!(annotation(&by_hand, name), annotation(&injected, name), "{name}");
    }
    let is_watched = |pod: &Value| pod["metadata"]["labels"]["ctrlmesh.kusionstack.io/watching"] == "true";
    assert!(is_watched(&by_hand) && is_watched(&injected));
    let sidecars = [&by_hand, &injected].map(|pod| &pod["spec"]["initContainers"][0]);
    assert_eq!(sidecar_settings(sidecars[0]), sidecar_settings(sidecars[1]));
    for field in [
        "name",
        "restartPolicy",
        "lifecycle",
        "readinessProbe",
        "livenessProbe",
        "securityContext",
    ] {
        assert_eq!(sidecars[0][field], sidecars[1][field], "{field}");
    }
    let controllers = [&by_hand, &injected].map(|pod| &pod["spec"]["containers"][0]);
    let variables = controllers.map(|controller| named(&controller["env"], "KUBECONFIG"));
    assert_eq!(variables[0], variables[1]);
    for (container, volume) in [
        (sidecars, "ctrlmesh-chain"),
        (sidecars, "ctrlmesh-podinfo"),
        (sidecars, "ctrlmesh-data"),
        (controllers, "fake-kubeconfig"),
    ] {
        let mounts = container.map(|container| named(&container["volumeMounts"], volume));
        assert_eq!(mounts[0], mounts[1], "{volume}");
        let volumes = [&by_hand, &injected].map(|pod| named(&pod["spec"]["volumes"], volume));
        assert_eq!(volumes[0], volumes[1], "{volume}");
    }
}
