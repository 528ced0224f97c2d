# gdb stops, steps, watches and unwinds a program: INT3, the trap flag and the debug registers.
set -euo pipefail
cat >debugged.c <<'C'
#include <stdio.h>
volatile int watched;
int inner(int n) { watched += n; return watched * 2; }
int outer(int n) { int sum = 0; for (int i = 0; i < n; i++) sum += inner(i); return sum; }
int main(void) { printf("%d\n", outer(10)); return 0; }
C
gcc -g -O0 -o debugged debugged.c
cat >script <<'G'
set confirm off
set startup-with-shell off
set disable-randomization on
break inner if n == 3
run
backtrace
print watched
delete
watch watched
continue
continue
info registers rip
delete
stepi 20
hbreak inner
rwatch watched
continue
continue
delete
continue
G
gdb -batch -x script ./debugged >out 2>&1 || { cat out; exit 1; }
cat out
grep -q '#0 .*inner (n=3)' out
grep -q '#1 .*outer (n=10)' out
grep -q '^\$1 = 3' out
[ "$(grep -c '^Hardware watchpoint' out)" -ge 3 ]
grep -q 'New value = 6' out
grep -q 'Hardware read watchpoint' out
grep -q 'exited normally' out
