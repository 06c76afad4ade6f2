//! Uses the parts of the standard library that an ordinary plugin uses: a `HashMap`, `println!`, arguments, environment. All of it must
//! work without revealing anything: it answers each request with what it saw in the header `x-std`.

use std::collections::HashMap;
use std::env;

use ctrlmesh_sdk::{Host, InstanceInfo, Plugin, Request, RequestEdit, RequestVerdict, Subscription, settings};
use ctrlmesh_test_guests::subscribe_to_everything;

struct StdPlain {
    seen: HashMap<String, u64>,
}

impl Plugin for StdPlain {
    type Settings = settings::NoSettings;

    #[expect(
        clippy::print_stdout,
        clippy::print_stderr,
        reason = "what the host does with them is the question"
    )]
    fn configure(_: Self::Settings, _: &InstanceInfo, _: &dyn Host) -> Result<(Self, Subscription), String> {
        println!("a line on stdout");
        eprintln!("a line on stderr");
        Ok((StdPlain { seen: HashMap::new() }, subscribe_to_everything()))
    }

    fn on_request(&mut self, req: &dyn Request, _: &dyn Host) -> RequestVerdict {
        let count = self.seen.entry(req.resource().to_owned()).or_default();
        *count += 1;
        let text = format!("count={count} args={} env={}", env::args().count(), env::vars().count());
        RequestVerdict::edit([RequestEdit::set_header("x-std", text)])
    }
}

ctrlmesh_sdk::export_plugin!(StdPlain);
