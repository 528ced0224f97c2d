//! What a vCPU that wraps another one only hands on.

/// The methods of `Vcpu` but for `run` and the registers, on what the field `inner` holds.
macro_rules! forward_vcpu {
    () => {
        fn resume(&mut self, answer: satori_engine::Resume) {
            self.inner.resume(answer);
        }
        fn inject(&mut self, event: satori_engine::Event) {
            self.inner.inject(event);
        }
        fn signal(&mut self, signal: satori_engine::Signal) -> satori_engine::Fate {
            self.inner.signal(signal)
        }
        fn request_window(&mut self, window: satori_engine::Window, wanted: bool) {
            self.inner.request_window(window, wanted);
        }
        fn controls_mut(&mut self) -> &mut satori_engine::Controls {
            self.inner.controls_mut()
        }
        fn flush_tlb(&mut self) {
            self.inner.flush_tlb();
        }
        fn flush_page(&mut self, linear: u64) {
            self.inner.flush_page(linear);
        }
        fn flush_non_global(&mut self) {
            self.inner.flush_non_global();
        }
        fn kick(&self) -> std::sync::Arc<satori_engine::Kick> {
            self.inner.kick()
        }
        fn set_debug(&mut self, plan: satori_engine::DebugPlan) {
            self.inner.set_debug(plan);
        }
        fn translate(&self, linear: u64) -> Option<u64> {
            self.inner.translate(linear)
        }
        fn retired(&self) -> u64 {
            self.inner.retired()
        }
        fn wakes_at(&self) -> Option<u64> {
            self.inner.wakes_at()
        }
        fn stats(&self) -> Vec<satori_engine::Stat> {
            self.inner.stats()
        }
    };
}
pub(crate) use forward_vcpu;
