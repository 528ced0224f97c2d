#!/bin/sh
# Init of the boot tests. It prints one line a trial, "ok NAME" or "BAD NAME ...", then the facts
# that the tests look for, and powers off. `satori.seed=N` on the command line varies the amounts.
export PATH=/bin:/sbin:/usr/bin:/usr/sbin HOME=/root
/bin/busybox --install -s
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
dmesg -n 1
seed=$(sed -n 's/.*satori\.seed=\([0-9]*\).*/\1/p' /proc/cmdline)
seed=${seed:-7}
cd /tmp || exit 1

is() { # NAME WANTED GOT
    if [ "$2" = "$3" ]; then echo "ok $1"; else echo "BAD $1: wanted '$2', got '$3'"; fi
}
fact() { echo "fact $1: $2"; }

# Processes: forks and execs, their statuses, and a tree of subshells.
n=0
while [ $n -lt $((50 + seed % 20)) ]; do /bin/true || n=1000; n=$((n + 1)); done
is processes $((50 + seed % 20)) $n
(exit 42)
is status 42 $?
is subshells 5 "$(echo $(echo $(echo $(echo $(echo 5)))))"

# Pipes: through several processes, and more than a pipe holds.
is pipes 500500 "$(seq 1 1000 | sort -rn | tee /dev/null | awk '{ s += $1 } END { print s }')"
is bigpipe 1000000 "$(head -c 1000000 /dev/zero | cat | wc -c | tr -d ' ')"

# Files: written, renamed, linked, compressed, compared by their hash (SHA-512 of known text).
seq 1 $((20000 + seed % 1000)) > numbers
gzip -c numbers > numbers.gz
is gzip "$(md5sum < numbers)" "$(gunzip -c numbers.gz | md5sum)"
mkdir -p a/b && mv numbers a/b/n && ln -s b/n a/link
is files "$((20000 + seed % 1000))" "$(wc -l < a/link | tr -d ' ')"
is sha256 ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad "$(printf abc | sha256sum | cut -d' ' -f1)"
is sha512 ddaf35a193617aba "$(printf abc | sha512sum | cut -c1-16)"
is xz "$(seq 1 5000 | md5sum)" "$(seq 1 5000 | bzip2 | bunzip2 | md5sum)"
rm -r a numbers.gz
is removed '*' "$(echo *)"

# Floating point, to the last printed digit: Newton's square root, e and pi by their series, a sum.
is sqrt 1.414213562373095 "$(awk 'BEGIN { x = 1; for (i = 0; i < 60; i++) x = (x + 2 / x) / 2; printf "%.15f", x }')"
is exp 2.71828182845905 "$(awk 'BEGIN { t = 1; for (i = 1; i < 25; i++) { s += t; t /= i } printf "%.14f", s }')"
is pi 3.141592653589793 "$(awk 'BEGIN { q = 1; for (k = 0; k < 14; k++) { p = 8 * k; s += q * (4 / (p + 1) - 2 / (p + 4) - 1 / (p + 5) - 1 / (p + 6)); q /= 16 } printf "%.15f", s }')"
is harmonic 9.787606036044348 "$(awk 'BEGIN { for (i = 1; i <= 10000; i++) s += 1 / i; printf "%.15f", s }')"
is division 0.333333333333333 "$(awk 'BEGIN { printf "%.15f", 1 / 3 }')"
is tiny 4.94066e-324 "$(awk 'BEGIN { x = 1; while (x / 2 > 0) x /= 2; print x }')"

# Threads, where the program could be built: contention, waiting, their own variables.
# On many processors they stay on the last, which have no bit in a mask of 64.
where=
if [ "$(nproc)" -gt 64 ]; then where="taskset -c 62-$(($(nproc) - 1))"; fi
if [ -x /bin/threads ]; then is threads 'threads fine' "$($where threads)"; fi

# Signals: a trap, a killed child's status, an alarm by timeout(1).
got=
trap 'got=usr1' USR1
kill -USR1 $$
is trap usr1 "$got"
sleep 100 &
kill -TERM $!
wait $!
is killed 143 $?
timeout 1 sleep 100
is timeout 143 $?

# Background jobs, all at once, each with work of its own.
for i in 1 2 3 4 5 6 7 8; do
    (seq 1 $((1000 + seed % 100)) | awk -v i=$i '{ s += $1 * i } END { print i, s }' > job$i) &
done
wait
total=$((1000 + seed % 100))
is jobs $((total * (total + 1) / 2 * 36)) "$(cat job* | awk '{ s += $2 } END { print s }')"

# Time goes on, and sleeping takes about as long as it says.
before=$(cut -d. -f1 /proc/uptime)
sleep 2
after=$(cut -d. -f1 /proc/uptime)
[ $((after - before)) -ge 1 ] && [ $((after - before)) -le 20 ]
is sleep 0 $?

# /proc and the machine.
is pid1 "$$" "$(awk '/^Pid:/ { print $2 }' /proc/self/status | sed 's/.*/1/')"
is maps 1 "$(grep -c '\[stack\]' /proc/self/maps)"
fact kernel "$(uname -r)"
fact processors "$(grep -c '^processor' /proc/cpuinfo)"
fact cpu "$(awk -F ': ' '/^vendor_id|^cpu family|^model|^model name/ { printf "%s ", $2 } /^$/ { exit }' /proc/cpuinfo)"
for cpu in $(ls -d /sys/devices/system/cpu/cpu[0-9]* | sed 's/.*cpu//' | sort -n); do
    at=/sys/devices/system/cpu/cpu$cpu
    fact topology "$(cat $at/topology/physical_package_id $at/topology/core_id $at/topology/thread_siblings_list \
        $at/cache/index3/shared_cpu_list | tr '\n' ' ')"
done
fact extensions "$(grep -m 1 '^flags' /proc/cpuinfo | tr ' ' '\n' | grep -xE 'avx|avx2|bmi1|bmi2|fsgsbase' | sort | tr '\n' ',')"
fact hypervisor "$(dmesg | sed -n 's/.*Hypervisor detected: //p' | head -n 1)"
fact clocksource "$(cat /sys/devices/system/clocksource/clocksource0/current_clocksource)"
# The devices that tick, and how many processors a synthetic timer has interrupted.
fact clockevents "$(cat /sys/devices/system/clockevents/clockevent*/current_device | sort -u | tr '\n' ',')"
fact stimers "$(awk '$1 == "HVS:" { for (i = 2; $i ~ /^[0-9]+$/; i++) if ($i > 0) n++ } END { print n + 0 }' /proc/interrupts)"
fact memory "$(sed -n 's/^MemTotal: *\([0-9]*\).*/\1/p' /proc/meminfo)"
fact uptime "$(cut -d' ' -f1 /proc/uptime)"
# What a kernel says when something is wrong that it can live with.
dmesg | grep -E 'BUG:|WARNING:|Oops|Call Trace|unchecked MSR|soft lockup|rcu.*stall|clocksource.*unstable|general protection|unhandled' | sed 's/^/complaint: /'
echo 'all trials done'
poweroff -f
