//! A plugin of a version of the contract that no host knows yet.

mod bindings {
    //! Generated.
    #![allow(missing_docs, unsafe_code, reason = "generated")]

    wit_bindgen::generate!({
        inline: "
            package ctrlmesh:plugin@9.0.0;
            interface oracle { ask: func(question: string) -> string; }
            world plugin {
              import oracle;
              export configure: func(settings: string) -> result<string, string>;
            }
        ",
    });

    struct Newer;

    impl Guest for Newer {
        fn configure(settings: String) -> Result<String, String> {
            Ok(ctrlmesh::plugin::oracle::ask(&settings))
        }
    }

    export!(Newer);
}
