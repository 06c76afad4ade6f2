//! `ctrlmesh plugin api-server`: the test kit's API server, to try a plugin without a cluster.

use std::path::Path;
use std::process::ExitCode;

use ctrlmesh_testkit::ApiServer;
use serde_json::json;

use crate::args::ApiServerArgs;
use crate::error::Error;
use crate::print;

/// Begins every kubeconfig that is written here.
const MARK: &str = "# Written by ctrlmesh plugin api-server, which overwrites it.\n";
/// Namespaces that the plugin guide's example uses.
const NAMESPACES: [&str; 2] = ["default", "prod-eu"];

pub(crate) async fn run(args: &ApiServerArgs) -> Result<ExitCode, Error> {
    check_kubeconfig(&args.kubeconfig)?;
    let server = ApiServer::builder().ports(0, args.port).start().await?;
    for name in NAMESPACES {
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
        server.store().put(namespace)?;
    }
    let kubeconfig = format!("{MARK}{}", server.kubeconfig());
    std::fs::write(&args.kubeconfig, kubeconfig).map_err(Error::file("write", &args.kubeconfig))?;
    print::line(&format!(
        "an API server in memory, at {}; its kubeconfig is {}. Ctrl-C ends it.",
        server.tls_url(),
        args.kubeconfig.display()
    ));
    print::line(&format!("the same without TLS, for curl: {}", server.url()));
    // Nobody would learn the address.
    print::check_output()?;
    tokio::signal::ctrl_c().await.map_err(Error::Runtime)?;
    Ok(ExitCode::SUCCESS)
}

/// Refuses to overwrite a kubeconfig of somebody else, with credentials that exist nowhere else.
fn check_kubeconfig(path: &Path) -> Result<(), Error> {
    match std::fs::read(path) {
        Ok(text) if text.is_empty() || text.starts_with(MARK.as_bytes()) => Ok(()),
        Ok(_) => Err(Error::ForeignKubeconfig(path.to_owned())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Error::file("read", path)(error)),
    }
}
