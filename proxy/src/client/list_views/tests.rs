use super::*;

/// An arbitrary reader.
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

/// What is known about the version that a watch resumes from. The watch is not opened.
pub(crate) fn resumed_as(list_views: &Arc<ListViews>, reader: &Reader<'_>, view: &[RequestEdit]) -> Known {
    let mut is_known = Known::Nothing;
    let position = list_views.resume(reader, view.iter(), |known| {
        is_known = known;
        false
    });
    assert!(position.is_none());
    is_known
}

/// A watch on the shard's view, opened in any case.
fn open(list_views: &Arc<ListViews>, name: &str) -> Position {
    opened(list_views, &shard(name))
}

fn opened(list_views: &Arc<ListViews>, view: &[RequestEdit]) -> Position {
    let (key, view) = (list_views.key(&READER), list_views.view(view.iter()));
    list_views.notes().of(key, view, 0).open();
    list_views.position(key, view, &READER)
}

fn shard(name: &str) -> Vec<RequestEdit> {
    vec![RequestEdit::AndLabelSelector(format!("shard={name}"))]
}

fn resumed(list_views: &Arc<ListViews>, name: &str) -> Known {
    resumed_as(list_views, &READER, &shard(name))
}

fn listed(list_views: &Arc<ListViews>, name: &str) {
    list_views.list(&READER, shard(name).iter(), true);
}

#[test]
fn view_of_watch_or_page_is_recognized_as_same_or_other() {
    let list_views = Arc::new(ListViews::default());
    assert_eq!(resumed(&list_views, "a"), Known::Nothing);
    listed(&list_views, "a");
    for (view, known) in [
        (shard("a"), Known::Same),
        (shard("b"), Known::Other),
        (vec![], Known::Other),
    ] {
        assert_eq!(list_views.page(&READER, view.iter()), known, "{view:?}");
        assert_eq!(resumed_as(&list_views, &READER, &view), known, "{view:?}");
    }
    let elsewhere = Reader {
        namespace: "n",
        ..READER
    };
    assert_eq!(list_views.page(&elsewhere, shard("a").iter()), Known::Nothing);
    list_views.list(&READER, [].iter(), true);
    assert_eq!(resumed_as(&list_views, &READER, &[]), Known::Same);
}

#[test]
fn list_by_other_reader_does_not_hide_watch_from_another_view() {
    let list_views = Arc::new(ListViews::default());
    listed(&list_views, "a");
    let [first, second] = [open(&list_views, "a"), open(&list_views, "a")];
    drop((first, second));
    listed(&list_views, "b");
    for _ in 0..2 {
        assert_eq!(
            resumed(&list_views, "b"),
            Known::Other,
            "both informers must list again"
        );
    }
    assert_eq!(resumed(&list_views, "b"), Known::Same, "and both may watch then");
}

#[test]
fn watch_from_before_first_rule_is_stale() {
    let list_views = Arc::new(ListViews::default());
    assert_eq!(resumed_as(&list_views, &READER, &[]), Known::Nothing);
    drop(opened(&list_views, &[]));
    listed(&list_views, "a");
    assert_eq!(resumed(&list_views, "a"), Known::Other);
}

#[test]
fn watch_that_ends_after_list_of_another_view_is_stale() {
    let list_views = Arc::new(ListViews::default());
    let watch = open(&list_views, "a");
    listed(&list_views, "b");
    drop(watch);
    assert_eq!(resumed(&list_views, "b"), Known::Other);
    assert_eq!(resumed(&list_views, "b"), Known::Same);
}

#[test]
fn client_gets_410_once_per_change_of_view() {
    let list_views = Arc::new(ListViews::default());
    let mut watch = open(&list_views, "a");
    watch.expire();
    drop(watch);
    listed(&list_views, "b");
    assert_eq!(resumed(&list_views, "b"), Known::Same);
    // Here the client gets the 410 as the response to its next watch.
    drop(open(&list_views, "b"));
    assert_eq!(resumed(&list_views, "c"), Known::Other);
    listed(&list_views, "c");
    assert_eq!(resumed(&list_views, "c"), Known::Same);
}

#[test]
fn watches_one_after_another_leave_one_position() {
    let list_views = Arc::new(ListViews::default());
    for _ in 0..100 {
        listed(&list_views, "a");
        assert_eq!(resumed(&list_views, "a"), Known::Same);
        drop(open(&list_views, "a"));
        drop(list_views.start_anew(&READER, shard("a").iter()));
    }
    listed(&list_views, "b");
    assert_eq!(resumed(&list_views, "b"), Known::Other);
    assert_eq!(resumed(&list_views, "b"), Known::Same);
}

#[test]
fn abandoned_positions_do_not_add_up() {
    let list_views = Arc::new(ListViews::default());
    for view in 0..100 {
        let view = view.to_string();
        listed(&list_views, &view);
        drop(open(&list_views, &view));
    }
    listed(&list_views, "a");
    assert_eq!(resumed(&list_views, "a"), Known::Other);
    assert_eq!(resumed(&list_views, "a"), Known::Same);
}

#[test]
fn lists_leave_no_note_while_no_plugin_shapes_them() {
    let list_views = Arc::new(ListViews::default());
    list_views.list(&READER, [].iter(), true);
    assert!(list_views.notes().notes.is_empty());
}

#[test]
fn oldest_notes_are_dropped_first() {
    let list_views = Arc::new(ListViews::default());
    let names: Vec<String> = (0..=MAX_NOTES).map(|n| n.to_string()).collect();
    let reader = |namespace| Reader { namespace, ..READER };
    for name in &names {
        list_views.list(&reader(name), shard("a").iter(), true);
    }
    assert_eq!(list_views.page(&reader("0"), shard("a").iter()), Known::Nothing);
    assert_eq!(list_views.page(&reader("1"), shard("a").iter()), Known::Same);
    assert_eq!(list_views.notes().order.len(), MAX_NOTES);
}

#[test]
fn list_by_other_reader_does_not_hide_list_without_watch_yet() {
    let list_views = Arc::new(ListViews::default());
    listed(&list_views, "a");
    listed(&list_views, "b");
    assert_eq!(resumed(&list_views, "b"), Known::Other);
    listed(&list_views, "b");
    assert_eq!(resumed(&list_views, "b"), Known::Same);
}

#[test]
fn lists_without_watch_do_not_add_up() {
    let list_views = Arc::new(ListViews::default());
    for _ in 0..100 {
        listed(&list_views, "a");
    }
    listed(&list_views, "b");
    assert_eq!(
        [resumed(&list_views, "b"), resumed(&list_views, "b")],
        [Known::Other, Known::Same]
    );
}

#[tokio::test(start_paused = true)]
async fn list_from_before_first_rule_is_stale_for_five_minutes() {
    let list_views = Arc::new(ListViews::default());
    let other = Reader {
        namespace: "n",
        ..READER
    };
    list_views.list(&READER, [].iter(), true);
    list_views.list(&READER, shard("a").iter(), false);
    assert_eq!(
        [resumed(&list_views, "a"), resumed(&list_views, "a")],
        [Known::Other, Known::Same]
    );
    tokio::time::advance(FIRST_RULE).await;
    list_views.list(&other, shard("a").iter(), false);
    assert_eq!(resumed_as(&list_views, &other, &shard("a")), Known::Same);
}

#[test]
fn position_outlives_its_note() {
    let list_views = Arc::new(ListViews::default());
    let watch = open(&list_views, "a");
    *list_views.notes() = Notes::default();
    drop(watch);
    listed(&list_views, "b");
    assert_eq!(resumed(&list_views, "b"), Known::Other);
}

#[test]
fn watch_counts_as_open_only_when_accepted() {
    let list_views = Arc::new(ListViews::default());
    listed(&list_views, "a");
    let watch = list_views.resume(&READER, shard("a").iter(), |known| known == Known::Same);
    let refused = list_views.resume(&READER, shard("b").iter(), |known| known == Known::Same);
    assert!(refused.is_none());
    drop(watch.expect("it comes from the same view"));
    listed(&list_views, "b");
    assert_eq!(
        [resumed(&list_views, "b"), resumed(&list_views, "b")],
        [Known::Other, Known::Same],
        "one watch was open"
    );
}

#[test]
fn objects_and_metadata_have_separate_readers() {
    let metadata = |text: &'static str| {
        let headers = HeaderMap::from_iter([(ACCEPT, http::HeaderValue::from_static(text))]);
        Reader {
            representation: Representation::of(&headers),
            ..READER
        }
    };
    let list = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    let watch = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    let list_views = Arc::new(ListViews::default());
    list_views.list(&metadata(list), shard("a").iter(), true);
    list_views.list(&READER, shard("b").iter(), true);
    assert_eq!(resumed_as(&list_views, &metadata(watch), &shard("a")), Known::Same);
    assert_eq!(resumed(&list_views, "b"), Known::Same);
    let table = metadata("application/json;as=Table;v=v1;g=meta.k8s.io,application/json");
    assert_eq!(table.representation, Representation::Table);
}

#[test]
fn versions_from_earlier_process_are_stale_for_a_while() {
    let list_views = Arc::new(ListViews::default());
    list_views.inherit();
    assert!(list_views.is_used(), "lists leave notes, whether shaped or not");
    list_views.list(&READER, [].iter(), false);
    assert_eq!(
        resumed_as(&list_views, &READER, &[]),
        Known::Other,
        "it may be another informer's, from before"
    );
    assert_eq!(resumed_as(&list_views, &READER, &[]), Known::Same);
}

#[test]
fn versions_from_earlier_process_match_under_the_same_chain() {
    let list_views = Arc::new(ListViews::default());
    list_views.inherit();
    listed(&list_views, "a");
    assert_eq!(resumed(&list_views, "a"), Known::Same);
}

#[test]
fn client_that_must_list_again_counts_until_it_watches() {
    let list_views = Arc::new(ListViews::default());
    listed(&list_views, "a");
    let watch = open(&list_views, "a");
    assert_eq!(list_views.outdated(), 0);
    watch.outdate();
    drop(watch);
    assert_eq!(list_views.outdated(), 1, "its watch has ended");
    listed(&list_views, "b");
    assert_eq!(list_views.outdated(), 1, "the list is not in its cache yet");
    assert_eq!(resumed(&list_views, "c"), Known::Other);
    assert_eq!(list_views.outdated(), 1, "sent again, it is still one");
    let watch = list_views.resume(&READER, shard("b").iter(), |_| true);
    assert!(watch.is_some() && list_views.outdated() == 0);
    watch.unwrap().outdate();
    drop(list_views.start_anew(&READER, shard("c").iter()));
    assert_eq!(list_views.outdated(), 0, "a watch that begins with a list");
}

#[test]
fn clients_of_earlier_process_count_once_they_must_list_again() {
    let list_views = Arc::new(ListViews::default());
    list_views.inherit();
    assert_eq!(
        [resumed(&list_views, "a"), resumed(&list_views, "a")],
        [Known::Nothing; 2]
    );
    assert_eq!(list_views.outdated(), 2);
    listed(&list_views, "a");
    assert_eq!(resumed(&list_views, "a"), Known::Same);
}

#[tokio::test(start_paused = true)]
async fn client_that_never_returns_is_waited_for_for_two_minutes() {
    let list_views = Arc::new(ListViews::default());
    open(&list_views, "a").outdate();
    tokio::time::advance(Duration::from_secs(119)).await;
    assert_eq!(list_views.outdated(), 1);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(list_views.outdated(), 0);
}

#[tokio::test(start_paused = true)]
async fn client_that_repeats_expired_watch_is_waited_for_for_five_minutes() {
    let list_views = Arc::new(ListViews::default());
    open(&list_views, "a").outdate();
    let repeat = async |seconds: u64, view: &str| {
        for _ in 0..seconds {
            tokio::time::advance(Duration::from_secs(1)).await;
            assert_ne!(resumed(&list_views, view), Known::Same);
        }
    };
    repeat(299, "b").await;
    assert_eq!(list_views.outdated(), 1);
    let told = list_views.stale_caches();
    assert_eq!((&*told[0].client, &*told[0].resource), ("manager", "configmaps"));
    assert_eq!((told[0].refused_watches, told[0].given_up), (299, false));
    repeat(1, "b").await;
    assert_eq!(list_views.outdated(), 0);
    repeat(600, "b").await;
    assert_eq!(list_views.outdated(), 0, "it does not begin anew");
    assert!(list_views.stale_caches()[0].given_up);
    repeat(1, "c").await;
    assert_eq!(list_views.outdated(), 1, "its view has changed once more");
    repeat(299, "c").await;
    assert_eq!(list_views.outdated(), 1);
    repeat(1, "c").await;
    assert_eq!(list_views.outdated(), 0);
    let watch = list_views.resume(&READER, shard("c").iter(), |_| true);
    assert!(
        watch.is_some() && list_views.stale_caches().is_empty(),
        "it watches again"
    );
}

#[tokio::test(start_paused = true)]
async fn client_that_is_refused_late_has_time_to_list() {
    let list_views = Arc::new(ListViews::default());
    open(&list_views, "a").outdate();
    tokio::time::advance(Duration::from_secs(100)).await;
    assert_eq!(resumed(&list_views, "b"), Known::Other);
    tokio::time::advance(Duration::from_secs(100)).await;
    assert_eq!(list_views.outdated(), 1);
}
