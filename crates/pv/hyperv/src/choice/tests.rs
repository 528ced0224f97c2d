use super::*;
use crate::Version;

fn chosen(sources: &[(&str, Result<Vec<Wish>, Mistakes>)]) -> Result<Chosen, String> {
    let mut choice = Choice::default();
    for (within, wishes) in sources {
        let wishes = wishes.clone().map_err(|mistakes| mistakes.to_string())?;
        choice.apply(within, &wishes).map_err(|mistakes| mistakes.to_string())?;
    }
    choice.finish().map_err(|mistakes| mistakes.to_string())
}

fn of_list(text: &str) -> Result<Chosen, String> {
    chosen(&[("--hyperv", list(text))])
}

fn of_cpu(text: &str) -> Result<Chosen, String> {
    chosen(&[("--cpu", cpu_option(text).map(|option| option.wishes))])
}

fn names(chosen: Result<Chosen, String>) -> Result<Vec<&'static str>, String> {
    chosen.map(|chosen| chosen.config.set.iter().map(Enlightenment::name).collect())
}

/// The names of `off` with `more`.
fn with_base(more: &[&'static str]) -> Result<Vec<&'static str>, String> {
    let wanted =
        |one: &&Enlightenment| ["base", "vpindex"].contains(&one.name()) || more.contains(&one.name());
    Ok(Enlightenment::ALL.iter().filter(wanted).map(|one| one.name()).collect())
}

fn auto() -> Vec<&'static str> {
    Config::auto().set.iter().map(Enlightenment::name).collect()
}

#[test]
fn lists_bring_what_they_need() {
    assert_eq!(names(of_list("off")), Ok(vec![]));
    assert_eq!(names(of_list("hv-time")), with_base(&["time"]));
    assert_eq!(names(of_list("auto")), Ok(auto()));
    assert_eq!(names(of_list("all")), Ok(Config::all().set.iter().map(Enlightenment::name).collect()));
    let less: Vec<_> = auto().into_iter().filter(|name| *name != "crash").collect();
    assert_eq!(names(of_list("auto,-crash")), Ok(less.clone()));
    assert_eq!(names(of_list("-crash")), Ok(less));
    assert_eq!(of_list("+reset").unwrap().config, of_list("auto,reset").unwrap().config);
}

#[test]
fn wrong_lists_are_told_word_by_word() {
    for (text, words) in [
        ("auto,vapci", "column 6: unknown enlightenment 'vapci': write vapic"),
        ("auto,warp", "known are auto, off, all, base"),
        ("off,time", "'off' stands alone"),
        ("time=3", "'time' takes no number: write time"),
        ("", "a name is missing"),
        ("auto,vendor_id=thirteen-char", "more than 12"),
        ("vendor_id=\u{e4}", "more than 12"),
        ("evmcs", "column 1: hv-evmcs is for guests that run guests: say --nested vmx as well"),
        ("time,-time", "column 6: '-time' contradicts 'time' at column 1"),
        ("auto,-vpindex", "needs hv-vpindex, which is off (--hyperv -vpindex (column 6)): say --hyperv off"),
    ] {
        let error = of_list(text).unwrap_err();
        assert!(error.contains(words) && error.lines().count() == 1, "{text}: {error}");
    }
    assert_eq!(of_list("wrap,tmie,vapic").unwrap_err().lines().count(), 2);
}

#[test]
fn what_only_the_base_brought_goes_with_what_it_needs() {
    let chosen = of_list("auto,-time").unwrap();
    let orphan = Enlightenment::ALL
        .iter()
        .find(|one| chosen.config.set.has(**one) && one.all_needs().has(Enlightenment::Time));
    assert_eq!(orphan, None);
}

#[test]
fn qemus_properties_modify_from_left_to_right() {
    let option = cpu_option("max,+rdrand,hv-relaxed,vendor=AuthenticAMD,hv_time=off,model-id=a,,b").unwrap();
    assert_eq!(option.rest, "max,+rdrand,vendor=AuthenticAMD,model-id=a,b");
    assert_eq!(option.wishes.len(), 2);
    assert_eq!(option.wishes[1].place, Some(Place { line: None, column: 44 }));
    let both = chosen(&[
        ("--hyperv", list("relaxed")),
        ("--cpu", cpu_option("max,hv-relaxed=off,hv_crash,hv-vendor-id=KVM Hv").map(|option| option.wishes)),
    ]);
    let both = both.unwrap();
    assert_eq!(names(Ok(both.clone())), with_base(&["crash", "vendor_id"]));
    assert_eq!(&both.config.vendor, b"KVM Hv\0\0\0\0\0\0");
    let by = |one: Enlightenment| both.by.iter().find(|(other, _)| *other == one).unwrap().1.to_string();
    assert_eq!(by(Enlightenment::Crash), "--cpu hv_crash (column 20)");
    assert_eq!(by(Enlightenment::Relaxed), "--cpu hv-relaxed=off (column 5)");
    assert_eq!(by(Enlightenment::Base), "needed by crash");
    assert_eq!(by(Enlightenment::Time), "--hyperv relaxed");
    assert_eq!(names(of_cpu("max,hv-passthrough,hv-enforce-cpuid")), names(of_list("all")));
    assert_eq!(names(of_cpu("max,+hv-reset,-hv-crash")), names(of_list("auto,reset,-crash")));
    assert_eq!(names(of_cpu("max,hv-evmcs=off")), Ok(auto()));
    let version = of_cpu("max,hv-version-id-build=0x4563,hv-version-id-minor=3").unwrap().config.version;
    assert_eq!(version, Version { build: 0x4563, minor: 3, ..Version::default() });
}

#[test]
fn wrong_properties_are_told_one_by_one() {
    for (text, words) in [
        ("max,hvrelaxed", "column 5: unknown property 'hvrelaxed': write hv-relaxed"),
        ("max,hvvendorid=KVM Hv", "write hv-vendor-id"),
        ("max,hy-vapic", "write hv-vapic"),
        ("max,hv-vapci", "unknown property 'hv-vapci': write hv-vapic"),
        ("max,hv-warp", "'satori hyperv list'"),
        ("max,hv-time=maybe", "takes on or off, not 'maybe'"),
        ("max,hv-time=", "takes on or off"),
        ("max,+hv-time=on", "a sign and a value"),
        ("max,hv-time,hv_time=off", "'hv_time=off' contradicts 'hv-time' at column 5"),
        ("max,hv-vendor-id=a,hv-vendor-id=b", "contradicts"),
        ("max,hv-vendor-id", "write hv-vendor-id=KVM Hv"),
        ("max,hv-syndbg", "cannot be had: it carries Windows' kernel debugger"),
        ("max,hv-evmcs=on", "column 5: hv-evmcs is for guests that run guests"),
        ("max,hv-tlbflush-direct", "say --nested vmx"),
        ("max,hv-enforce-cpuid=off", "always refused"),
        ("max,hv-version-id-major=65536", "0 to 65535"),
        ("max,hv-version-id-patch=1", "hv-version-id-snumber"),
        ("max,hvpassthrough", "write hv-passthrough"),
    ] {
        let error = of_cpu(text).unwrap_err();
        assert!(error.starts_with("--cpu, ") && error.contains(words), "{text}: {error}");
        assert_eq!(error.lines().count(), 1, "{text}: {error}");
    }
    let error = of_cpu("....,hvrelaxed").unwrap_err();
    assert_eq!(
        error,
        "--cpu, column 1: '....' stands for a model: write one, such as max\n\
         --cpu, column 6: unknown property 'hvrelaxed': write hv-relaxed"
    );
    // These are the processor's.
    assert!(of_cpu("max,+ht,hypervisor=on,-hle").is_ok());
}

#[test]
fn what_is_for_hypervisors_comes_with_all_where_there_can_be_one() {
    let all = |nested: bool| {
        let mut choice = Choice::default().nested(nested);
        choice.apply("--hyperv", &list("all").unwrap()).unwrap();
        choice.finish().unwrap()
    };
    let of_vmx = Config {
        set: Config::all_nested().set.without(Enlightenment::EnlightenedTlb),
        ..Config::all_nested()
    };
    assert_eq!(all(true).config, of_vmx);
    assert_eq!(all(false).config, Config::all());
    let by = all(false).by.into_iter().find(|(one, _)| *one == Enlightenment::Evmcs).unwrap().1;
    assert_eq!(by.to_string(), "for --nested vmx only");
    let mut choice = Choice::default().nested(true);
    choice.apply("--hyperv", &list("emsr_bitmap,evmcs").unwrap()).unwrap();
    assert!(choice.clone().finish().unwrap().config.set.has(Enlightenment::Vapic));
    let refused = choice.of_svm(true).finish().unwrap_err().to_string();
    assert!(
        refused.ends_with("hv-evmcs is for guests of VMX: say --nested vmx, or leave it out"),
        "{refused}"
    );
    let mut svm = Choice::default().nested(true).of_svm(true);
    svm.apply("--hyperv", &list("all").unwrap()).unwrap();
    let set = svm.finish().unwrap().config.set;
    assert!(set.has(Enlightenment::EmsrBitmap) && set.has(Enlightenment::TlbflushDirect));
    assert!(!set.has(Enlightenment::Evmcs) && set.has(Enlightenment::EnlightenedTlb));
    let mut choice = Choice::default().nested(true);
    choice.apply("--hyperv", &list("enlightened_tlb").unwrap()).unwrap();
    assert!(choice.clone().of_svm(true).finish().unwrap().config.set.has(Enlightenment::GpaFlush));
    let refused = choice.finish().unwrap_err().to_string();
    assert!(refused.ends_with("is for guests of SVM: say --nested svm, or leave it out"), "{refused}");
}

#[test]
fn all_needs_close_over_chains() {
    let needs = Enlightenment::Evmcs.all_needs();
    assert!(
        needs.has(Enlightenment::Vapic)
            && needs.has(Enlightenment::Vpindex)
            && !needs.has(Enlightenment::Evmcs)
    );
}

#[test]
fn auto_is_the_repaired_set_where_the_processor_has_apicv() {
    let set = |apicv, text: Option<&str>| {
        let mut choice = Choice::on(apicv);
        if let Some(text) = text {
            choice.apply("--hyperv", &list(text).unwrap()).unwrap();
        }
        choice.finish().unwrap().config.set
    };
    for (text, on) in [
        (None, true),
        (Some("auto"), true),
        (Some("+reset"), true),
        (Some("auto,-apicv"), false),
        (Some("off"), false),
        (Some("ipi"), false),
    ] {
        assert_eq!(set(true, text).has(Enlightenment::Apicv), on, "{text:?}");
        let asked = text.is_some_and(|text| text.contains("-apicv"));
        assert!(asked || !set(false, text).has(Enlightenment::Apicv), "{text:?}");
    }
}
