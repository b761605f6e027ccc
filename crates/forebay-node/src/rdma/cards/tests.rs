//! What is tested of the cards that the configuration names.

use super::*;

fn config(settings: &[&str]) -> Config {
    let sources = forebay_config::Sources::new().flags(settings.iter().map(|setting| (*setting).to_owned()));
    Config::load(&sources).unwrap().config
}

#[test]
fn a_card_that_is_not_there_is_named_with_those_that_are() {
    let none = Machine::look(&Root::new("/nonexistent")).unwrap();
    let told = |settings: &[&str]| {
        let error = none.data_cards(&config(settings)).unwrap_err();
        (format!("{error:#}"), crate::error::UserError::from(&error).next.unwrap_or_default())
    };
    let (what, next) = told(&["network.rdma.data.bind.device=mlx5_0:1"]);
    for part in ["network.rdma.data.bind.device: ", "mlx5_0:1"] {
        assert!(what.contains(part), "{what}");
    }
    assert!(next.contains("RDMA devices here: none"), "{next}");
    let (what, _) = told(&["network.rdma.data.network=ib0"]);
    assert!(what.contains("there is no network interface `ib0`"), "{what}");
    assert_eq!(none.data_cards(&config(&[])).unwrap(), [Card::any()]);
    let metadata = config(&["network.rdma.metadata.device=mlx5_3", "network.rdma.metadata.ib_port=2"]);
    let error = format!("{:#}", none.metadata_card(&metadata).unwrap_err());
    assert!(error.contains("network.rdma.metadata.device: ") && error.contains("mlx5_3:2"), "{error}");
}

#[test]
fn an_interface_that_is_not_there_and_one_without_a_card_are_told_apart() {
    let root = tempfile::tempdir().unwrap();
    let told = |machine: &Machine, name: &str| {
        let error = machine.data_cards(&config(&[&format!("network.rdma.data.network={name}")])).unwrap_err();
        let user_error = crate::error::UserError::from(&error);
        assert_eq!(user_error.exit, Exit::Usage);
        (user_error.what, user_error.next.unwrap())
    };
    let none = Machine::look(&Root::new(root.path())).unwrap();
    let (what, next) = told(&none, "ib7");
    assert!(what.contains("network.rdma.data.network: there is no network interface `ib7`"), "{what}");
    assert!(
        next.contains("RDMA devices here: none") && next.contains("interfaces here: ") && next.contains("lo"),
        "{next}"
    );
    let (what, next) = told(&none, "lo");
    assert!(what.contains("`lo` is there, and no RDMA device belongs to it"), "{what}");
    assert!(next.contains("this machine has no RDMA device"), "{next}");
    let port = root.path().join("sys/class/infiniband/mlx5_0/ports/1");
    std::fs::create_dir_all(port.join("gids")).unwrap();
    std::fs::create_dir_all(port.join("gid_attrs/ndevs")).unwrap();
    std::fs::write(port.join("gids/0"), "fe80:0000:0000:0000:0000:0000:0000:0001\n").unwrap();
    std::fs::write(port.join("gid_attrs/ndevs/0"), "ib9\n").unwrap();
    let machine = Machine::look(&Root::new(root.path())).unwrap();
    for wrong in ["lo", "ib7"] {
        assert!(told(&machine, wrong).1.contains("RDMA devices here: mlx5_0:1 (ib9)"), "{wrong}");
    }
}

#[test]
fn metadata_has_a_device_a_port_and_a_gid_of_its_own() {
    let root = tempfile::tempdir().unwrap();
    for port in ["1", "2"] {
        let port = root.path().join("sys/class/infiniband/mlx5_0/ports").join(port);
        std::fs::create_dir_all(port.join("gids")).unwrap();
        std::fs::create_dir_all(port.join("gid_attrs/ndevs")).unwrap();
        std::fs::write(port.join("gids/0"), "fe80:0000:0000:0000:0000:0000:0000:0001\n").unwrap();
        // An interface that every machine has, with an address.
        std::fs::write(port.join("gid_attrs/ndevs/0"), "lo\n").unwrap();
    }
    let machine = Machine::look(&Root::new(root.path())).unwrap();
    let card = |settings: &[&str]| machine.metadata_card(&config(settings)).unwrap();
    assert_eq!(card(&[]), Card::any());
    assert_eq!(card(&["network.rdma.metadata.gid_index=3"]).fabric.gid_index, Some(3));
    let second = card(&["network.rdma.metadata.device=mlx5_0", "network.rdma.metadata.ib_port=2"]);
    assert_eq!((second.device.as_deref(), second.fabric.gid_index), (Some("mlx5_0:2"), None));
    assert!(second.address.is_some() && second.prefix.is_some());
    let twice = config(&["network.rdma.data.network=lo", "network.rdma.data.bind.device=mlx5_0:1"]);
    assert_eq!(machine.data_cards(&twice).unwrap().len(), 1);
}
#[test]
fn what_the_fabric_is_to_do_for_data_is_asked_of_every_card_for_data_and_of_no_other() {
    let machine = Machine::look(&Root::new("/nonexistent")).unwrap();
    let settings = [
        "network.rdma.data.gid_index=3",
        "network.rdma.data.service_level=5",
        "network.rdma.data.traffic_class=106",
        "network.rdma.data.partition_key=0x8012",
        "network.rdma.data.mtu=2048",
        "network.rdma.data.ack_timeout=500ms",
        "network.rdma.data.retry_count=6",
        "network.rdma.data.rnr_retry_count=3",
    ];
    let asked = FabricOptions {
        gid_index: Some(3),
        service_level: Some(5),
        traffic_class: Some(106),
        partition_key: Some(0x8012),
        mtu: Some(2048),
        ack_timeout: Some(std::time::Duration::from_millis(500)),
        retry_count: Some(6),
        rnr_retry_count: Some(3),
    };
    let cards = machine.data_cards(&config(&settings)).unwrap();
    assert!(!cards.is_empty() && cards.iter().all(|card| card.fabric == asked), "{cards:?}");
    assert_eq!(machine.metadata_card(&config(&settings)).unwrap().fabric, FabricOptions::default());
    assert_eq!(machine.data_cards(&config(&[])).unwrap()[0].fabric, FabricOptions::default());
}

#[test]
fn verbs_take_the_cards_that_are_named_or_every_active_one_with_an_address() {
    let root = tempfile::tempdir().unwrap();
    // An interface that every machine has, with an address, and one that none has.
    for (device, state, interface) in
        [("rxe0", "4: ACTIVE", "lo"), ("rxe1", "1: DOWN", "lo"), ("rxe2", "4: ACTIVE", "nope0")]
    {
        let port = root.path().join("sys/class/infiniband").join(device).join("ports/1");
        std::fs::create_dir_all(port.join("gids")).unwrap();
        std::fs::create_dir_all(port.join("gid_attrs/ndevs")).unwrap();
        std::fs::write(port.join("state"), format!("{state}\n")).unwrap();
        std::fs::write(port.join("gids/0"), "fe80:0000:0000:0000:0000:0000:0000:0001\n").unwrap();
        std::fs::write(port.join("gid_attrs/ndevs/0"), format!("{interface}\n")).unwrap();
    }
    let machine = Machine::look(&Root::new(root.path())).unwrap();
    let by = |settings: &[&str], provider| machine.data_cards_by(&config(settings), provider);
    let cards = by(&[], Provider::Verbs).unwrap();
    let [card] = &cards[..] else { panic!("{cards:?}") };
    assert_eq!((card.device.as_deref(), card.provider), (Some("rxe0:1"), Provider::Verbs));
    assert_eq!(card.thread_name(), "rxe0:1 verbs");
    assert_eq!(by(&[], Provider::Ucx).unwrap(), [Card::any()]);
    let named = by(&["network.rdma.data.bind.device=rxe1:1"], Provider::Verbs).unwrap();
    assert_eq!(named[0].device.as_deref(), Some("rxe1:1"), "a card that is named is taken as it is");
    let error = by(&["network.rdma.data.bind.device=rxe2:1"], Provider::Verbs).unwrap_err().to_string();
    assert!(error.contains("rxe2:1 has no IP address"), "{error}");
    let metadata = machine.metadata_card_by(&config(&[]), Provider::Verbs).unwrap();
    assert_eq!((metadata.device.as_deref(), metadata.thread_name().as_str()), (Some("rxe0:1"), "rxe0:1 verbs"));
    assert_eq!(machine.metadata_card_by(&config(&[]), Provider::Ucx).unwrap(), Card::any());
    let none = Machine::look(&Root::new("/nonexistent")).unwrap();
    let error = none.data_cards_by(&config(&[]), Provider::Verbs).unwrap_err().to_string();
    assert!(error.contains("no RDMA device is active"), "{error}");
}

#[test]
fn verbs_take_no_more_cards_than_clients_are_told_of_and_find_an_address_on_any_interface_of_one() {
    let root = tempfile::tempdir().unwrap();
    for device in 0..MAX_PATHS + 2 {
        let port = root.path().join(format!("sys/class/infiniband/rxe{device}/ports/1"));
        std::fs::create_dir_all(port.join("gids")).unwrap();
        std::fs::create_dir_all(port.join("gid_attrs/ndevs")).unwrap();
        std::fs::write(port.join("state"), "4: ACTIVE\n").unwrap();
        // The second is as a VLAN's, which has the address.
        for (index, interface) in ["nope0", "lo"].into_iter().enumerate() {
            let gid = format!("fe80:0000:0000:0000:0000:0000:0000:000{}\n", index + 1);
            std::fs::write(port.join("gids").join(index.to_string()), gid).unwrap();
            std::fs::write(port.join("gid_attrs/ndevs").join(index.to_string()), format!("{interface}\n")).unwrap();
        }
    }
    let machine = Machine::look(&Root::new(root.path())).unwrap();
    let cards = machine.data_cards_by(&config(&[]), Provider::Verbs).unwrap();
    assert_eq!(cards.len(), MAX_PATHS - 1, "and one for metadata");
    assert!(cards.iter().all(|card| card.address.is_some()), "{cards:?}");
}

/// As Linux before 6.5 shows Soft-iWARP: no file names its interface, and its GID is that one's hardware address.
#[test]
fn a_card_of_iwarp_is_used_by_verbs_at_the_address_of_the_interface_whose_hardware_address_it_has() {
    let root = tempfile::tempdir().unwrap();
    let device = root.path().join("sys/class/infiniband/siw0");
    std::fs::create_dir_all(device.join("ports/1/gids")).unwrap();
    std::fs::write(device.join("node_type"), "4: RNIC\n").unwrap();
    std::fs::write(device.join("ports/1/state"), "4: ACTIVE\n").unwrap();
    std::fs::write(device.join("ports/1/link_layer"), "Ethernet\n").unwrap();
    std::fs::write(device.join("ports/1/gids/0"), "0200:5e00:53af:0000:0000:0000:0000:0000\n").unwrap();
    for (interface, address) in [("lo", "02:00:5e:00:53:af"), ("eth9", "02:00:5e:00:53:b0")] {
        let interface = root.path().join("sys/class/net").join(interface);
        std::fs::create_dir_all(&interface).unwrap();
        std::fs::write(interface.join("address"), format!("{address}\n")).unwrap();
    }
    let machine = Machine::look(&Root::new(root.path())).unwrap();
    let ways: [&[&str]; 3] = [&[], &["network.rdma.data.network=lo"], &["network.rdma.data.bind.device=siw0:1"]];
    for settings in ways {
        let cards = machine.data_cards_by(&config(settings), Provider::Verbs).unwrap();
        let [card] = &cards[..] else { panic!("{cards:?}") };
        assert_eq!(card.device.as_deref(), Some("siw0:1"), "{settings:?}");
        assert!(card.address.is_some_and(|address| address.is_loopback()), "{card:?}");
    }
    let chosen = config(&["network.rdma.data.gid_index=0"]);
    let error = machine.data_cards_by(&chosen, Provider::Verbs).unwrap_err().to_string();
    assert!(error.contains("iWARP"), "{error}");
}

#[test]
fn of_cards_that_nobody_named_a_worker_takes_the_one_where_it_is_to_listen() {
    let card = |address: &str| Card { name: address.into(), address: address.parse().ok(), ..Card::default() };
    let of = |settings: &[&str]| {
        let cards = at_bind_host(&config(settings), vec![card("10.0.0.1"), card("10.1.0.1")]);
        cards.into_iter().map(|card| card.name).collect::<Vec<_>>()
    };
    assert_eq!(of(&[]), ["10.0.0.1", "10.1.0.1"]);
    assert_eq!(of(&["network.rdma.data.bind.host=10.1.0.1"]), ["10.1.0.1"]);
    assert_eq!(of(&["network.rdma.data.bind.host=10.9.0.1"]), ["10.0.0.1", "10.1.0.1"]);
    assert!(are_named(&config(&["network.rdma.data.network=ib0"])) && !are_named(&config(&[])));
}

#[test]
fn an_entry_of_the_table_of_gids_has_verbs_use_its_address_and_ucx_its_index() {
    let root = tempfile::tempdir().unwrap();
    let port = root.path().join("sys/class/infiniband/rxe0/ports/1");
    for folder in ["gids", "gid_attrs/ndevs", "gid_attrs/types"] {
        std::fs::create_dir_all(port.join(folder)).unwrap();
    }
    std::fs::write(port.join("state"), "4: ACTIVE\n").unwrap();
    std::fs::write(port.join("link_layer"), "Ethernet\n").unwrap();
    // Of the interface that every machine has, and one that is nobody's (RFC 5737).
    for (index, gid) in ["7f00:0001", "c000:0201"].into_iter().enumerate() {
        let index = index.to_string();
        std::fs::write(port.join("gids").join(&index), format!("0000:0000:0000:0000:0000:ffff:{gid}\n")).unwrap();
        std::fs::write(port.join("gid_attrs/ndevs").join(&index), "lo\n").unwrap();
        std::fs::write(port.join("gid_attrs/types").join(&index), "RoCE v2\n").unwrap();
    }
    let machine = Machine::look(&Root::new(root.path())).unwrap();
    let by = |index: &str, provider| {
        let index = format!("network.rdma.data.gid_index={index}");
        machine.data_cards_by(&config(&["network.rdma.data.bind.device=rxe0:1", &index]), provider)
    };
    assert_eq!(by("0", Provider::Verbs).unwrap()[0].address, Some("127.0.0.1".parse().unwrap()));
    assert_eq!(by("1", Provider::Ucx).unwrap()[0].fabric.gid_index, Some(1));
    for (index, expected) in [("1", "192.0.2.1"), ("7", "has no entry 7")] {
        let error = by(index, Provider::Verbs).unwrap_err();
        assert_eq!(crate::error::UserError::from(&error).exit, Exit::Failed, "the other library may have it");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn a_card_without_memory_windows_leaves_verbs_to_the_others_if_there_are_some() {
    let card = |name: &str| Card { name: name.into(), device: Some(format!("{name}:1")), ..Card::default() };
    let said = |name: &str, has_windows| VerbsDevice { name: name.into(), has_windows, ..VerbsDevice::default() };
    let verbs = [said("mlx5_0", Some(true)), said("erdma_0", Some(false)), said("mlx5_1", None)];
    let names = |cards: Vec<Card>| cards.into_iter().map(|card| card.name).collect::<Vec<_>>();
    let all = ["mlx5_0", "erdma_0", "mlx5_1", "rxe0"].map(card);
    let (fit, unfit) = divided(all.into_iter(), &verbs).unwrap();
    assert_eq!(
        (names(fit), names(unfit)),
        (["mlx5_0", "mlx5_1", "rxe0"].map(str::to_owned).to_vec(), vec!["erdma_0".into()])
    );
    let alone = divided([card("erdma_0")].into_iter(), &verbs).unwrap_err();
    assert_eq!(names(alone), ["erdma_0"], "there payload goes in messages");
}
