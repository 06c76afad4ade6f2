//! Requests of a manager with many sidecars: through its first chain, an edit and a quiet time, compared with the
//! formulas of `docs/scale.md`. `CTRLMESH_SCALE_SIDECARS` sets the number of sidecars (`make scale`).
//!
//! API server and sidecars answer over real connections, so time is real, too. A quiet hour is simulated by the test of
//! this name in `manager/rollout`.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::*;

const DEFAULT_SIDECARS: u32 = 200;
/// Address of the first sidecar, 127.100.0.1. The others follow.
const FIRST_ADDRESS: u32 = 0x7f64_0001;
const FAULTS: &str = "faultinjections.ctrlmesh.kusionstack.io";
/// A time of some poll periods may begin and end with a poll.
const EXTRA_POLLS: u64 = 1;

fn number_of_sidecars() -> u32 {
    let number = std::env::var("CTRLMESH_SCALE_SIDECARS");
    number.map_or(DEFAULT_SIDECARS, |number| number.parse().unwrap())
}

fn pod_name(number: u32) -> String {
    format!("operator-{number:05}")
}

/// Sidecars behind one listener: the address that a poll connects to says which one is asked.
struct Sidecars {
    port: u16,
    /// The status of all of them, but for the pod's name.
    status: Arc<Mutex<Status>>,
    task: AbortHandle,
}

impl Drop for Sidecars {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Sidecars {
    async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let status = Arc::new(Mutex::new(status_running("", 0, None)));
        let task = tokio::spawn(accept_polls(listener, Arc::clone(&status))).abort_handle();
        Self { port, status, task }
    }

    /// All sidecars run this chain from now on.
    fn load_chain(&self, chain: &Chain) {
        *self.status.lock().unwrap() = status_running("", chain.generation, Some(chain));
    }
}

async fn accept_polls(listener: TcpListener, status: Arc<Mutex<Status>>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        tokio::spawn(answer_poll(stream, Arc::clone(&status)));
    }
}

/// Answers one request and closes the connection, as the admin port of a sidecar does.
async fn answer_poll(mut stream: TcpStream, status: Arc<Mutex<Status>>) -> Option<()> {
    let SocketAddr::V4(address) = stream.local_addr().ok()? else {
        return None;
    };
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read_buf(&mut head).await.ok()? == 0 {
            return None;
        }
    }
    let mut status = status.lock().unwrap().clone();
    status.pod.name = pod_name(address.ip().to_bits().checked_sub(FIRST_ADDRESS)?);
    let body = serde_json::to_string(&status).unwrap();
    let length = body.len();
    let response = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
    stream.write_all(response.as_bytes()).await.ok()?;
    stream.shutdown().await.ok()
}

/// Requests to the API server since its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Requests {
    /// All but watches, which are opened anew after some minutes.
    total: u64,
    created_config_maps: u64,
    patched_config_maps: u64,
    nudges: u64,
    statuses: u64,
    events: u64,
}

impl Requests {
    fn sent_to(server: &ApiServer) -> Self {
        let requests = server.requests();
        Self {
            total: requests.total() - requests.count("watch"),
            created_config_maps: requests.count_of("create", "configmaps"),
            patched_config_maps: requests.count_of("patch", "configmaps"),
            nudges: requests.count_of("patch", "pods"),
            statuses: requests.count_of("patch", "faultinjections"),
            events: requests.count_of("create", "events"),
        }
    }

    fn since(self, before: Self) -> Self {
        Self {
            total: self.total - before.total,
            created_config_maps: self.created_config_maps - before.created_config_maps,
            patched_config_maps: self.patched_config_maps - before.patched_config_maps,
            nudges: self.nudges - before.nudges,
            statuses: self.statuses - before.statuses,
            events: self.events - before.events,
        }
    }
}

/// Requests to the API server and to sidecars, and passes.
#[derive(Clone, Copy, Debug)]
struct Work {
    requests: Requests,
    polls: u64,
    passes: u64,
}

/// A manager, its API server and its sidecars.
struct Mesh {
    sidecars: u32,
    api: ApiServer,
    simulated: Sidecars,
    context: Context,
}

impl Mesh {
    /// Sets up pods and an object for all of them. `rate`: requests a second and at once.
    async fn start(sidecars: u32, rate: u32, poll_seconds: u64) -> (Self, Running) {
        let simulated = Sidecars::start().await;
        // No watch falls behind, however late it reads the changes of all pods.
        let changes = usize::try_from(sidecars).unwrap() * 8 + 4096;
        let api = test_env::builder().namespace(DEMO).event_log(changes).request_log(0);
        let api = api.start().await.unwrap();
        for number in 0..sidecars {
            let address = Ipv4Addr::from_bits(FIRST_ADDRESS + number);
            put(&api, pod(&pod_name(number), &address.to_string()));
        }
        put(&api, samples::faults("a"));
        let flags = [
            format!("--sidecar-port={}", simulated.port),
            format!("--rest-config-qps={rate}"),
            format!("--rest-config-burst={rate}"),
            format!("--poll-seconds={poll_seconds}"),
        ];
        let context = test_env::context(&api, &flags.each_ref().map(String::as_str)).await;
        let running = Running::start(&context, run_with(context.clone(), CRD_TIMEOUT));
        let mesh = Self {
            sidecars,
            api,
            simulated,
            context,
        };
        (mesh, running)
    }

    fn work(&self) -> Work {
        let metrics = &self.context.metrics.distribution;
        Work {
            requests: Requests::sent_to(&self.api),
            polls: metrics.polls.get(),
            passes: metrics.passes.get(),
        }
    }

    fn work_since(&self, before: Work) -> Work {
        let now = self.work();
        Work {
            requests: now.requests.since(before.requests),
            polls: now.polls - before.polls,
            passes: now.passes - before.passes,
        }
    }

    /// Waits with a patience that grows with the sidecars. The condition is not checked at each change, because it may
    /// read all pods.
    async fn until(&self, what: &str, mut is_so: impl FnMut(&Snapshot<'_>) -> bool) {
        let (begun, patience) = (Instant::now(), test_env::PATIENCE * (1 + self.sidecars / 1000));
        while !self.api.store().read(&mut is_so) {
            assert!(begun.elapsed() < patience, "{what}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until each pod is annotated with the chain after this generation. Returns the chain.
    async fn until_nudged(&self, after: u64) -> Chain {
        let is_written = |state: &Snapshot<'_>| chain(state).is_some_and(|chain| chain.generation > after);
        self.until("the chain is written", is_written).await;
        let written = self.api.store().read(chain).unwrap();
        let generation = json!(written.generation.to_string());
        let is_nudged = |state: &Snapshot<'_>| {
            let mut pods = state.list("pods");
            pods.all(|pod| pod["metadata"]["annotations"][annotations::CHAIN_GENERATION] == generation)
        };
        self.until("all pods are nudged", is_nudged).await;
        written
    }

    /// Lets all sidecars load a chain, and waits until the manager has reported that of the object's generation.
    async fn until_enforced(&self, chain: &Chain, generation: &Value, events: u64) {
        self.simulated.load_chain(chain);
        let is_enforced = |state: &Snapshot<'_>| {
            let object = state.get(FAULTS, DEMO, "a").unwrap();
            let mut conditions = object["status"]["conditions"].as_array().into_iter().flatten();
            conditions.any(|condition| {
                condition["type"] == "Enforced"
                    && condition["status"] == "True"
                    && condition["observedGeneration"] == *generation
            })
        };
        self.until("the object is enforced", is_enforced).await;
        let is_published = |_: &Snapshot<'_>| self.api.requests().count_of("create", "events") >= events;
        self.until("an Event says so", is_published).await;
    }

    /// Repeated nudges of a chain, by the annotations of pods.
    fn repeated_nudges(&self, chain: &Chain) -> u64 {
        let of_chain = format!("{}.", chain.generation);
        self.api.store().read(|state| {
            let repeated = state.list("pods").filter_map(|pod| {
                let renudged = pod["metadata"]["annotations"][annotations::CHAIN_BUMP].as_str()?;
                renudged.strip_prefix(&of_chain)?.parse::<u64>().ok()
            });
            repeated.sum()
        })
    }

    fn generation_of_faults(&self) -> Value {
        let generation = |state: &Snapshot<'_>| state.get(FAULTS, DEMO, "a").unwrap()["metadata"]["generation"].clone();
        self.api.store().read(generation)
    }

    fn edit_faults(&self) {
        let read = |state: &Snapshot<'_>| state.get(FAULTS, DEMO, "a").unwrap().clone();
        let mut object = self.api.store().read(read);
        object["spec"]["httpFault"][0]["abort"]["httpStatus"] = json!(503);
        put(&self.api, object);
    }
}

/// Resident memory of this process in KiB, where Linux says so.
fn resident_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

/// Processor time of this process in hundredths of a second, where Linux says so.
fn processor_time() -> Option<u64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // After the name, which may contain spaces: the twelfth and thirteenth fields.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?)
}

/// Each pod is nudged once, and up to three times more while it is behind. Where nobody waits for the processor, repetitions are those that
/// the pods' annotations show; on a slow machine a pod may get another chain before its last nudge is seen.
fn assert_nudges(nudges: u64, pods: u64, repeated: u64) {
    assert!(
        (pods + repeated..=4 * pods).contains(&nudges),
        "{nudges} nudges of {pods} pods, {repeated} of them repeated"
    );
}

#[tokio::test]
async fn requests_are_as_many_as_the_formulas_say() {
    let sidecars = number_of_sidecars();
    let pods = u64::from(sidecars);
    // A rate that is too low for all nudges at once, and polls that leave the machine some time.
    let rate = (sidecars * 2 / 3).clamp(50, 10_000);
    let poll_seconds = (pods / 1000).max(1);
    let memory = resident_kib();
    let (mesh, running) = Mesh::start(sidecars, rate, poll_seconds).await;

    let first = mesh.until_nudged(0).await;
    mesh.until_enforced(&first, &mesh.generation_of_faults(), 1).await;
    let requests = mesh.work().requests;
    assert_eq!((requests.created_config_maps, requests.patched_config_maps), (2, 0));
    assert_nudges(requests.nudges, pods, mesh.repeated_nudges(&first));
    println!(
        "{sidecars} sidecars, first chain: {requests:?}, memory before and after: {memory:?}, {:?}",
        resident_kib()
    );

    let (before, begun) = (mesh.work(), Instant::now());
    mesh.edit_faults();
    let second = mesh.until_nudged(first.generation).await;
    let (nudged, loaded) = (begun.elapsed(), Instant::now());
    let least = f64::from(sidecars.saturating_sub(rate)) / f64::from(rate);
    assert!(nudged.as_secs_f64() >= least, "{nudged:?} is less than {least} s");
    let events = before.requests.events + 1;
    mesh.until_enforced(&second, &mesh.generation_of_faults(), events).await;
    let Work {
        requests,
        polls,
        passes,
    } = mesh.work_since(before);
    let enforced = loaded.elapsed();
    println!(
        "{sidecars} sidecars, edit: {requests:?}, {polls} polls, {passes} passes, times {nudged:?} and {enforced:?}"
    );
    assert_eq!((requests.created_config_maps, requests.patched_config_maps), (0, 1));
    assert_nudges(requests.nudges, pods, mesh.repeated_nudges(&second));
    assert_eq!(requests.events, 1);
    assert!(
        (2..=passes).contains(&requests.statuses),
        "{requests:?} in {passes} passes"
    );

    // Pauses between polls double until they are the longest.
    let (settling, periods) = (Duration::from_secs(poll_seconds) * 2, 2);
    tokio::time::sleep(settling).await;
    let (before, processor) = (mesh.work(), processor_time());
    tokio::time::sleep(Duration::from_secs(poll_seconds * periods)).await;
    let Work {
        requests,
        polls,
        passes,
    } = mesh.work_since(before);
    let processor = processor_time().zip(processor).map(|(after, before)| after - before);
    println!(
        "{sidecars} sidecars, {periods} quiet periods: {polls} polls, {passes} passes, processor time {processor:?}"
    );
    assert_eq!(requests.total, 0, "{requests:?}");
    assert!(
        (pods * periods / 2..=pods * (periods + EXTRA_POLLS)).contains(&polls),
        "{polls} polls"
    );
    assert!(passes <= periods + 1, "{passes} passes");
    running.stop().await;
}
