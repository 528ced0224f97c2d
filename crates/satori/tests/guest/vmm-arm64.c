// A monitor for /dev/kvm on arm64, as small as can be: one vCPU, GICv3, 2 MiB of memory, a guest of its own.
//
// The guest calls PSCI (answered in the kernel), stores to a device (answered here), takes interrupts of its virtual timer through the
// virtual CPU interface, and turns itself off. What it stores at DEVICE is printed.

#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#define RAM 0x40000000ul
#define SIZE 0x200000ul
#define GICD 0x08000000ul
#define GICR 0x080a0000ul
#define DEVICE 0x09000000ul

extern const char guest_begin[], guest_end[];

asm("	.pushsection .rodata\n"
    "	.balign 2048\n"
    "	.globl guest_begin, guest_end\n"
    "guest_begin:\n"
    "	b	0f\n"
    "	.org	guest_begin + 0x280\n"     // VBAR_EL1 + 0x280: IRQ of the current level with its own stack pointer
    "	mrs	x0, S3_0_C12_C12_0\n"      // ICC_IAR1_EL1
    "	cmp	x0, #27\n"
    "	b.ne	1f\n"
    "	add	x21, x21, #1\n"
    "	mov	x1, #10000\n"
    "	msr	cntv_tval_el0, x1\n"
    "1:	msr	S3_0_C12_C12_1, x0\n"      // ICC_EOIR1_EL1
    "	eret\n"
    "	.org	guest_begin + 0x800\n"
    "0:	adr	x0, guest_begin\n"
    "	msr	vbar_el1, x0\n"
    "	mov	x21, #0\n"
    "	mov	x22, #0x09000000\n"        // DEVICE
    "	mov	x19, #1000\n"
    "2:	mov	w0, #0x84000000\n"         // PSCI_VERSION
    "	hvc	#0\n"
    "	subs	x19, x19, #1\n"
    "	b.ne	2b\n"
    "	str	w0, [x22]\n"
    "	mov	x19, #100\n"
    "3:	ldr	w1, [x22, #4]\n"
    "	subs	x19, x19, #1\n"
    "	b.ne	3b\n"
    "	str	w1, [x22]\n"
    "	mov	x0, #0x08000000\n"         // GICD_CTLR: affinity routing, group 1
    "	mov	w1, #0x12\n"
    "	str	w1, [x0]\n"
    "	movz	x0, #0x080a, lsl #16\n"
    "	str	wzr, [x0, #0x14]\n"        // GICR_WAKER
    "	add	x0, x0, #0x10, lsl #12\n"  // the SGI frame: all of group 1, PPI 27 enabled
    "	mov	w1, #-1\n"
    "	str	w1, [x0, #0x80]\n"
    "	mov	w1, #0x08000000\n"
    "	str	w1, [x0, #0x100]\n"
    "	mov	x1, #0xf0\n"
    "	msr	S3_0_C4_C6_0, x1\n"        // ICC_PMR_EL1
    "	mov	x1, #1\n"
    "	msr	S3_0_C12_C12_7, x1\n"      // ICC_IGRPEN1_EL1
    "	isb\n"
    "	mov	x1, #10000\n"
    "	msr	cntv_tval_el0, x1\n"
    "	mov	x1, #1\n"
    "	msr	cntv_ctl_el0, x1\n"
    "	msr	daifclr, #2\n"
    "4:	wfi\n"
    "	cmp	x21, #50\n"
    "	b.lo	4b\n"
    "	str	w21, [x22]\n"
    "	mov	w0, #0x84000000\n"
    "	add	w0, w0, #8\n"              // SYSTEM_OFF
    "	hvc	#0\n"
    "	b	.\n"
    "guest_end:\n"
    "	.popsection\n");

static void fail(const char *what)
{
	printf("BAD %s: %s\n", what, strerror(errno));
	exit(1);
}

static int call(int fd, unsigned long request, void *argument, const char *what)
{
	int result = ioctl(fd, request, argument);
	if (result < 0)
		fail(what);
	return result;
}

static void attribute(int gic, uint32_t group, uint64_t name, void *value, const char *what)
{
	struct kvm_device_attr attr = { .group = group, .attr = name, .addr = (uintptr_t)value };
	call(gic, KVM_SET_DEVICE_ATTR, &attr, what);
}

static void set(int vcpu, uint64_t id, uint64_t value)
{
	struct kvm_one_reg reg = { .id = id, .addr = (uintptr_t)&value };
	call(vcpu, KVM_SET_ONE_REG, &reg, "KVM_SET_ONE_REG");
}

int main(void)
{
	setvbuf(stdout, NULL, _IONBF, 0);
	int kvm = open("/dev/kvm", O_RDWR);
	if (kvm < 0)
		fail("/dev/kvm");
	int vm = call(kvm, KVM_CREATE_VM, 0, "KVM_CREATE_VM");
	char *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	memcpy(memory, guest_begin, guest_end - guest_begin);
	struct kvm_userspace_memory_region region = {
		.guest_phys_addr = RAM, .memory_size = SIZE, .userspace_addr = (uintptr_t)memory,
	};
	call(vm, KVM_SET_USER_MEMORY_REGION, &region, "KVM_SET_USER_MEMORY_REGION");
	int vcpu = call(vm, KVM_CREATE_VCPU, 0, "KVM_CREATE_VCPU");

	struct kvm_create_device gic = { .type = KVM_DEV_TYPE_ARM_VGIC_V3 };
	call(vm, KVM_CREATE_DEVICE, &gic, "KVM_CREATE_DEVICE");
	uint64_t distributor = GICD, redistributor = GICR;
	uint32_t interrupts = 64;
	attribute(gic.fd, KVM_DEV_ARM_VGIC_GRP_ADDR, KVM_VGIC_V3_ADDR_TYPE_DIST, &distributor, "GICD");
	attribute(gic.fd, KVM_DEV_ARM_VGIC_GRP_ADDR, KVM_VGIC_V3_ADDR_TYPE_REDIST, &redistributor, "GICR");
	attribute(gic.fd, KVM_DEV_ARM_VGIC_GRP_NR_IRQS, 0, &interrupts, "interrupts");

	struct kvm_vcpu_init init = { 0 };
	call(vm, KVM_ARM_PREFERRED_TARGET, &init, "KVM_ARM_PREFERRED_TARGET");
	init.features[0] |= 1 << KVM_ARM_VCPU_PSCI_0_2;
	call(vcpu, KVM_ARM_VCPU_INIT, &init, "KVM_ARM_VCPU_INIT");
	attribute(gic.fd, KVM_DEV_ARM_VGIC_GRP_CTRL, KVM_DEV_ARM_VGIC_CTRL_INIT, NULL, "KVM_DEV_ARM_VGIC_CTRL_INIT");
	set(vcpu, KVM_REG_ARM64 | KVM_REG_SIZE_U64 | KVM_REG_ARM_CORE | KVM_REG_ARM_CORE_REG(regs.pc), RAM);

	int size = call(kvm, KVM_GET_VCPU_MMAP_SIZE, 0, "KVM_GET_VCPU_MMAP_SIZE");
	struct kvm_run *run = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, vcpu, 0);
	int reads = 0;
	for (;;) {
		call(vcpu, KVM_RUN, 0, "KVM_RUN");
		if (run->exit_reason == KVM_EXIT_MMIO && run->mmio.phys_addr - DEVICE < 8) {
			uint32_t value = run->mmio.is_write ? 0 : ++reads;
			if (run->mmio.is_write) {
				memcpy(&value, run->mmio.data, 4);
				printf("fact l2: %u\n", value);
			} else {
				memcpy(run->mmio.data, &value, 4);
			}
		} else if (run->exit_reason == KVM_EXIT_SYSTEM_EVENT) {
			printf("fact l2 event: %u\n", run->system_event.type);
			return 0;
		} else {
			printf("BAD exit %u at %llx\n", run->exit_reason, (unsigned long long)run->mmio.phys_addr);
			return 1;
		}
	}
}
