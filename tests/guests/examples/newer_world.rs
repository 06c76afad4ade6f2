//! A plugin for a version of the contract that no host supports yet.

mod bindings {
    #![allow(missing_docs, unsafe_code, reason = "generated")]

    wit_bindgen::generate!({
        inline: "
            package ctrlmesh:plugin@9.0.0;
            interface oracle { ask: func(question: string) -> string; }
            world plugin {
              import oracle;
              export configure: func(settings: string) -> result<string, string>;
              export on-request: func() -> bool;
              export on-response: func() -> bool;
              export on-complete: func();
            }
        ",
    });

    struct Newer;

    impl Guest for Newer {
        fn configure(settings: String) -> Result<String, String> {
            Ok(ctrlmesh::plugin::oracle::ask(&settings))
        }

        fn on_request() -> bool {
            true
        }

        fn on_response() -> bool {
            true
        }

        fn on_complete() {}
    }

    export!(Newer);
}
