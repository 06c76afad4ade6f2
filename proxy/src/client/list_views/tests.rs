use super::*;

/// A reader; which one does not matter.
pub(crate) const READER: Reader<'_> = Reader {
    user_agent: b"manager",
    representation: Representation::Object,
    group: "",
    version: "v1",
    resource: "configmaps",
    namespace: "",
    label_selector: "",
    field_selector: "",
};

/// What is known of the version that a watch comes with. The watch is not opened.
pub(crate) fn resumed_as(ledger: &Arc<Ledger>, reader: &Reader<'_>, view: &[RequestEdit]) -> Known {
    let mut is_known = Known::Nothing;
    let position = ledger.resume(reader, view.iter(), |known| {
        is_known = known;
        false
    });
    assert!(position.is_none());
    is_known
}

/// A watch at the side: opened, whatever is known.
fn open(ledger: &Arc<Ledger>, name: &str) -> Position {
    opened(ledger, &shard(name))
}

fn opened(ledger: &Arc<Ledger>, view: &[RequestEdit]) -> Position {
    let (key, view) = (ledger.key(&READER), ledger.view(view.iter()));
    ledger.notes().of(key, view, 0).open();
    ledger.position(key, view, &READER)
}

fn shard(name: &str) -> Vec<RequestEdit> {
    vec![RequestEdit::AndLabelSelector(format!("shard={name}"))]
}

fn resumed(ledger: &Arc<Ledger>, name: &str) -> Known {
    resumed_as(ledger, &READER, &shard(name))
}

fn listed(ledger: &Arc<Ledger>, name: &str) {
    ledger.list(&READER, shard(name).iter(), true);
}

#[test]
fn a_watch_or_page_is_known_to_come_from_the_same_or_another_view() {
    let ledger = Arc::new(Ledger::default());
    assert_eq!(resumed(&ledger, "a"), Known::Nothing);
    listed(&ledger, "a");
    for (view, known) in [
        (shard("a"), Known::Same),
        (shard("b"), Known::Other),
        (vec![], Known::Other),
    ] {
        assert_eq!(ledger.page(&READER, view.iter()), known, "{view:?}");
        assert_eq!(resumed_as(&ledger, &READER, &view), known, "{view:?}");
    }
    let elsewhere = Reader {
        namespace: "n",
        ..READER
    };
    assert_eq!(ledger.page(&elsewhere, shard("a").iter()), Known::Nothing);
    ledger.list(&READER, [].iter(), true);
    assert_eq!(resumed_as(&ledger, &READER, &[]), Known::Same);
}

#[test]
fn a_list_by_somebody_else_does_not_hide_that_a_watch_is_from_another_view() {
    let ledger = Arc::new(Ledger::default());
    listed(&ledger, "a");
    let [first, second] = [open(&ledger, "a"), open(&ledger, "a")];
    drop((first, second));
    listed(&ledger, "b");
    for _ in 0..2 {
        assert_eq!(resumed(&ledger, "b"), Known::Other, "both informers must list again");
    }
    assert_eq!(resumed(&ledger, "b"), Known::Same, "and both may watch then");
}

#[test]
fn the_first_rule_counts_too() {
    let ledger = Arc::new(Ledger::default());
    assert_eq!(resumed_as(&ledger, &READER, &[]), Known::Nothing);
    drop(opened(&ledger, &[]));
    listed(&ledger, "a");
    assert_eq!(resumed(&ledger, "a"), Known::Other);
}

#[test]
fn a_watch_that_ends_after_the_list_of_another_view_is_stale() {
    let ledger = Arc::new(Ledger::default());
    let watch = open(&ledger, "a");
    listed(&ledger, "b");
    drop(watch);
    assert_eq!(resumed(&ledger, "b"), Known::Other);
    assert_eq!(resumed(&ledger, "b"), Known::Same);
}

#[test]
fn a_client_that_was_told_is_not_told_again() {
    let ledger = Arc::new(Ledger::default());
    let mut watch = open(&ledger, "a");
    watch.expire();
    drop(watch);
    listed(&ledger, "b");
    assert_eq!(resumed(&ledger, "b"), Known::Same);
    // By the answer to its next watch: nothing has ended since.
    drop(open(&ledger, "b"));
    assert_eq!(resumed(&ledger, "c"), Known::Other);
    listed(&ledger, "c");
    assert_eq!(resumed(&ledger, "c"), Known::Same);
}

#[test]
fn watches_one_after_another_leave_one_position() {
    let ledger = Arc::new(Ledger::default());
    for _ in 0..100 {
        listed(&ledger, "a");
        assert_eq!(resumed(&ledger, "a"), Known::Same);
        drop(open(&ledger, "a"));
        drop(ledger.start_anew(&READER, shard("a").iter()));
    }
    listed(&ledger, "b");
    assert_eq!(resumed(&ledger, "b"), Known::Other);
    assert_eq!(resumed(&ledger, "b"), Known::Same);
}

#[test]
fn abandoned_positions_do_not_add_up() {
    let ledger = Arc::new(Ledger::default());
    for view in 0..100 {
        let view = view.to_string();
        listed(&ledger, &view);
        drop(open(&ledger, &view));
    }
    listed(&ledger, "a");
    assert_eq!(resumed(&ledger, "a"), Known::Other);
    assert_eq!(resumed(&ledger, "a"), Known::Same);
}

#[test]
fn lists_leave_no_note_while_no_plugin_shapes_them() {
    let ledger = Arc::new(Ledger::default());
    ledger.list(&READER, [].iter(), true);
    assert!(ledger.notes().notes.is_empty());
}

#[test]
fn the_oldest_notes_go_first() {
    let ledger = Arc::new(Ledger::default());
    let names: Vec<String> = (0..=MAX_NOTES).map(|n| n.to_string()).collect();
    let reader = |namespace| Reader { namespace, ..READER };
    for name in &names {
        ledger.list(&reader(name), shard("a").iter(), true);
    }
    assert_eq!(ledger.page(&reader("0"), shard("a").iter()), Known::Nothing);
    assert_eq!(ledger.page(&reader("1"), shard("a").iter()), Known::Same);
    assert_eq!(ledger.notes().order.len(), MAX_NOTES);
}

#[test]
fn a_list_by_somebody_else_does_not_hide_a_list_whose_watch_has_yet_to_come() {
    let ledger = Arc::new(Ledger::default());
    listed(&ledger, "a");
    listed(&ledger, "b");
    assert_eq!(resumed(&ledger, "b"), Known::Other);
    listed(&ledger, "b");
    assert_eq!(resumed(&ledger, "b"), Known::Same);
}

#[test]
fn lists_without_a_watch_do_not_add_up() {
    let ledger = Arc::new(Ledger::default());
    for _ in 0..100 {
        listed(&ledger, "a");
    }
    listed(&ledger, "b");
    assert_eq!(
        [resumed(&ledger, "b"), resumed(&ledger, "b")],
        [Known::Other, Known::Same]
    );
}

#[tokio::test(start_paused = true)]
async fn a_list_from_before_the_first_rule_counts_as_stale_for_a_while() {
    let ledger = Arc::new(Ledger::default());
    let other = Reader {
        namespace: "n",
        ..READER
    };
    ledger.list(&READER, [].iter(), true);
    ledger.list(&READER, shard("a").iter(), false);
    assert_eq!(
        [resumed(&ledger, "a"), resumed(&ledger, "a")],
        [Known::Other, Known::Same]
    );
    tokio::time::advance(FIRST_RULE).await;
    ledger.list(&other, shard("a").iter(), false);
    assert_eq!(resumed_as(&ledger, &other, &shard("a")), Known::Same);
}

#[test]
fn a_position_outlives_its_note() {
    let ledger = Arc::new(Ledger::default());
    let watch = open(&ledger, "a");
    *ledger.notes() = Notes::default();
    drop(watch);
    listed(&ledger, "b");
    assert_eq!(resumed(&ledger, "b"), Known::Other);
}

#[test]
fn a_watch_is_open_if_it_was_let_through() {
    let ledger = Arc::new(Ledger::default());
    listed(&ledger, "a");
    let watch = ledger.resume(&READER, shard("a").iter(), |known| known == Known::Same);
    let refused = ledger.resume(&READER, shard("b").iter(), |known| known == Known::Same);
    assert!(refused.is_none());
    drop(watch.expect("it comes from the same view"));
    listed(&ledger, "b");
    assert_eq!(
        [resumed(&ledger, "b"), resumed(&ledger, "b")],
        [Known::Other, Known::Same],
        "one watch was open"
    );
}

#[test]
fn whole_objects_and_metadata_are_read_by_two() {
    let metadata = |text: &'static str| {
        let headers = HeaderMap::from_iter([(ACCEPT, http::HeaderValue::from_static(text))]);
        Reader {
            representation: Representation::of(&headers),
            ..READER
        }
    };
    let list = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    let watch = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    let ledger = Arc::new(Ledger::default());
    ledger.list(&metadata(list), shard("a").iter(), true);
    ledger.list(&READER, shard("b").iter(), true);
    assert_eq!(resumed_as(&ledger, &metadata(watch), &shard("a")), Known::Same);
    assert_eq!(resumed(&ledger, "b"), Known::Same);
    let table = metadata("application/json;as=Table;v=v1;g=meta.k8s.io,application/json");
    assert_eq!(table.representation, Representation::Table);
}

#[test]
fn what_clients_read_from_a_process_before_may_be_of_another_view_for_a_while() {
    let ledger = Arc::new(Ledger::default());
    ledger.inherit();
    assert!(ledger.is_used(), "lists leave notes, whether shaped or not");
    ledger.list(&READER, [].iter(), false);
    assert_eq!(
        resumed_as(&ledger, &READER, &[]),
        Known::Other,
        "it may be another informer's, from before"
    );
    assert_eq!(resumed_as(&ledger, &READER, &[]), Known::Same);
}

#[test]
fn what_clients_read_from_a_process_before_is_of_the_same_view_under_the_same_chain() {
    let ledger = Arc::new(Ledger::default());
    ledger.inherit();
    listed(&ledger, "a");
    assert_eq!(resumed(&ledger, "a"), Known::Same);
}

#[test]
fn a_client_that_was_sent_to_list_again_counts_until_it_watches() {
    let ledger = Arc::new(Ledger::default());
    listed(&ledger, "a");
    let watch = open(&ledger, "a");
    assert_eq!(ledger.outdated(), 0);
    watch.outdate();
    drop(watch);
    assert_eq!(ledger.outdated(), 1, "its watch has ended");
    listed(&ledger, "b");
    assert_eq!(ledger.outdated(), 1, "the list is not in its cache yet");
    assert_eq!(resumed(&ledger, "c"), Known::Other);
    assert_eq!(ledger.outdated(), 1, "sent again, it is still one");
    let watch = ledger.resume(&READER, shard("b").iter(), |_| true);
    assert!(watch.is_some() && ledger.outdated() == 0);
    watch.unwrap().outdate();
    drop(ledger.start_anew(&READER, shard("c").iter()));
    assert_eq!(ledger.outdated(), 0, "a watch that begins with a list");
}

#[test]
fn clients_of_a_process_before_count_when_they_are_sent_to_list_again() {
    let ledger = Arc::new(Ledger::default());
    ledger.inherit();
    assert_eq!([resumed(&ledger, "a"), resumed(&ledger, "a")], [Known::Nothing; 2]);
    assert_eq!(ledger.outdated(), 2);
    listed(&ledger, "a");
    assert_eq!(resumed(&ledger, "a"), Known::Same);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_never_comes_back_is_not_waited_for_for_ever() {
    let ledger = Arc::new(Ledger::default());
    open(&ledger, "a").outdate();
    tokio::time::advance(Duration::from_secs(119)).await;
    assert_eq!(ledger.outdated(), 1);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(ledger.outdated(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_repeats_an_expired_watch_is_waited_for_for_five_minutes() {
    let ledger = Arc::new(Ledger::default());
    open(&ledger, "a").outdate();
    let repeat = async |seconds: u64, view: &str| {
        for _ in 0..seconds {
            tokio::time::advance(Duration::from_secs(1)).await;
            assert_ne!(resumed(&ledger, view), Known::Same);
        }
    };
    repeat(299, "b").await;
    assert_eq!(ledger.outdated(), 1);
    let told = ledger.stale_caches();
    assert_eq!((&*told[0].client, &*told[0].resource), ("manager", "configmaps"));
    assert_eq!((told[0].refused_watches, told[0].given_up), (299, false));
    repeat(1, "b").await;
    assert_eq!(ledger.outdated(), 0);
    repeat(600, "b").await;
    assert_eq!(ledger.outdated(), 0, "it does not begin anew");
    assert!(ledger.stale_caches()[0].given_up);
    repeat(1, "c").await;
    assert_eq!(ledger.outdated(), 1, "its view has changed once more");
    repeat(299, "c").await;
    assert_eq!(ledger.outdated(), 1);
    repeat(1, "c").await;
    assert_eq!(ledger.outdated(), 0);
    let watch = ledger.resume(&READER, shard("c").iter(), |_| true);
    assert!(watch.is_some() && ledger.stale_caches().is_empty(), "it watches again");
}

#[tokio::test(start_paused = true)]
async fn client_that_is_refused_late_has_time_to_list() {
    let ledger = Arc::new(Ledger::default());
    open(&ledger, "a").outdate();
    tokio::time::advance(Duration::from_secs(100)).await;
    assert_eq!(resumed(&ledger, "b"), Known::Other);
    tokio::time::advance(Duration::from_secs(100)).await;
    assert_eq!(ledger.outdated(), 1);
}
