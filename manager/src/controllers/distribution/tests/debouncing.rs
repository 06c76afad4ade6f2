//! Changes without a gap.

use super::*;

#[tokio::test]
async fn chain_is_written_while_pods_change_all_the_time() {
    let server = server().await;
    let (_, running) = start(&server, 1, &["--debounce-ms=1000"]).await;
    put(&server, samples::faults("a"));
    let changing = async {
        let mut often = tokio::time::interval(Duration::from_millis(50));
        for number in 0_u64.. {
            often.tick().await;
            let mut pod = pod("operator-0", "127.0.0.44");
            pod["metadata"]["annotations"] = json!({ "changed": number.to_string() });
            put(&server, pod);
        }
    };
    tokio::select! {
        () = changing => {}
        chain = until_entries(&server, 1) => assert_eq!(chain.generation, 1),
    }
    running.stop().await;
}
