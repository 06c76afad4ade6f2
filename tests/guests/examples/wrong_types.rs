//! Has the right exports with other types.

mod bindings {
    #![allow(missing_docs, unsafe_code, reason = "generated")]

    wit_bindgen::generate!({
        inline: "
            package other:plugin@1.0.0;
            world plugin {
              export configure: func(settings: string) -> result<string, string>;
              export on-request: func(path: string) -> bool;
              export on-response: func(status: u16) -> bool;
              export on-complete: func();
            }
        ",
    });

    struct Other;

    impl Guest for Other {
        fn configure(settings: String) -> Result<String, String> {
            Ok(settings)
        }

        fn on_request(path: String) -> bool {
            path.is_empty()
        }

        fn on_response(status: u16) -> bool {
            status == 200
        }

        fn on_complete() {}
    }

    export!(Other);
}
