//! The properties on random inputs that look like real ones: a smoke test for any compiler.

use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1000) })]

    #[test]
    fn request_info_is_same_in_other_spellings(
        method in "GET|POST|DELETE|PUT|HEAD|PURGE",
        path in "(/|%2[fF]|api|apis|v1|namespaces|watch|proxy|status|pods|p|%70|%ff|%|\\.|;){0,12}|/api/v1/(namespaces/n/|namespaces//|nodes/)?(pods(/p(/proxy(/|//|\\.\\.?|\\\\|%2[eE]|%2f|%5C|%25|2f|2e|p){0,12})?)?/?)?",
        query in "(\\?(watch|limit|fieldSelector|labelSelector|=|%3D|metadata\\.name|&|x|0|;|%){0,10})?",
    ) {
        crate::request_info(format!("{method}\n/{path}{query}").as_bytes());
    }

    #[test]
    fn printed_selector_is_same_when_read_again(
        text in "([abx1]|in|notin|[=!<>(),\\\\ /.\\x00]|==|!=|\\n|a=1|metadata\\.name){0,16}",
    ) {
        crate::selector(text.as_bytes());
    }

    #[test]
    fn query_rewrite_changes_only_its_key(text in "[ab]?\n[ab =&;%]{0,4}\n([ab=&;+%]|%61|%zz){0,20}") {
        crate::query_rewrite(text.as_bytes());
    }

    #[test]
    fn renamed_text_is_read_again(
        choice in any::<u8>(),
        text in "([{}\\[\\]:,\"\\\\ \n-]|\"lock\"|lock|\"metadata\":\\{\"name\":\"lock\"\\}|\"items\":|metadata:|name:|\"kind\":\"Status\"|\"object\":){0,16}",
    ) {
        crate::rename(&[&[choice], text.as_bytes()].concat());
    }

    #[test]
    fn renamed_object_is_read_again(
        choice in any::<u8>(),
        rest in "(,\"[a-z]{1,4}\":(1|\"lock\"|\\[\\]))?",
        after in "[ \n}]{0,2}",
    ) {
        crate::rename(&[&[choice], format!("{{\"metadata\":{{\"name\":\"lock\"{rest}}}{rest}}}{after}").as_bytes()].concat());
    }

    #[test]
    fn renamed_protobuf_is_read_again(
        fields in prop::collection::vec((1_u8..6, prop::collection::vec(any::<u8>(), 0..6)), 0..5),
    ) {
        let body = fields.iter().fold(b"\x0a\x06\x0a\x04lock".to_vec(), |mut body, (number, bytes)| {
            body.extend([number << 3 | 2, bytes.len() as u8]);
            body.extend(bytes);
            body
        });
        let unknown = [&[0x12, body.len() as u8], &*body].concat();
        crate::rename(&[&[4], &*unknown].concat());
        crate::rename(&[&[4], &*body].concat());
    }

    #[test]
    fn destination_has_one_spelling(
        method in "GET|CONNECT|OPTIONS",
        target in "(/p|\\*|(https?://)?(b@)?(127\\.1|127\\.0x1|0x7f|2130706433|0177\\.0\\.0\\.1|\\[::ffff:127\\.0\\.0\\.1\\]|\\[::1\\]|a\\.B|localhost|([aA1-2.:]|0x[0-9a-f]{0,2}|%31|-|_){1,8})\\.{0,2}(:(0|[0-9]{0,6}))?(/p)?)",
        endpoint in "(https?://(b@)?(127\\.1|127\\.0x1|0x7f|2130706433|0177\\.0\\.0\\.1|\\[::ffff:127\\.0\\.0\\.1\\]|\\[::1\\]|a\\.B|localhost|([aA1-2.:]|0x[0-9a-f]{0,2}|%31|-|_){1,8})\\.{0,2}(:(0|[0-9]{0,6}))?(/p)?)?",
    ) {
        crate::destination(format!("{method}\n{target}\n{endpoint}").as_bytes());
    }

    #[test]
    fn accepted_chain_document_is_same_when_read_again(
        settings in "([{}\\[\\]:,'\"\n &*!|>#-]|a|: |\\\\u0000|1e400|0x1|-1|0\\.1|true|null|~|<<|\\x7f|😀){0,12}",
        number in any::<f64>(),
    ) {
        let version = "chain.ctrlmesh.kusionstack.io/v1";
        let digest = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let entry = format!("\"name\":\"a\",\"plugin\":\"{digest}\",\"settings\":{{\"x\":[{settings}],\"y\":{number:?}}}");
        let json = format!("{{\"apiVersion\":\"{version}\",\"namespace\":\"a\",\"generation\":1,\"entries\":[{{{entry}}}]}}");
        crate::chain_document(json.as_bytes());
        let entry = format!("- name: a\n  plugin: {digest}\n  settings: {{x: [{settings}], y: {number:?}}}\n");
        let yaml = format!("apiVersion: {version}\nnamespace: a\ngeneration: 1\nentries:\n{entry}");
        crate::chain_document(yaml.as_bytes());
    }
}
