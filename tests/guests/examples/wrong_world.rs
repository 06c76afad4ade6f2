//! A component of an unrelated world.

mod bindings {
    #![allow(missing_docs, unsafe_code, reason = "generated")]

    wit_bindgen::generate!({
        inline: "
            package other:greeter@1.0.0;
            world greeter { export greet: func(name: string) -> string; }
        ",
    });

    struct Greeter;

    impl Guest for Greeter {
        fn greet(name: String) -> String {
            format!("hello, {name}")
        }
    }

    export!(Greeter);
}
