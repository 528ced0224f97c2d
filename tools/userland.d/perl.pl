# Known answers and round trips of perl's arithmetic, strings, regular expressions and modules.
use strict;
use warnings;
use Test::More;
use Math::BigInt;
use Math::BigFloat;
use Digest::SHA qw(sha512_hex);
use Digest::MD5 qw(md5_hex);
use List::Util qw(sum shuffle reduce);
use Storable qw(dclone);
use POSIX qw(floor fmod strtod DBL_MAX);

is(Math::BigFloat->bpi(60), '3.14159265358979323846264338327950288419716939937510582097494', 'pi');
is(Math::BigInt->new(100)->bfac()->bstr() =~ tr/0//, 30, 'zeros of 100!');
is(Math::BigInt->new(2)->bpow(521)->bdec()->bmod(1_000_003)->bstr(),
    do { my $v = 1; $v = $v * 2 % 1_000_003 for 1 .. 521; $v - 1 }, 'a Mersenne prime modulo a prime');
is(sha512_hex('abc'), 'ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a'
    . '2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f', 'SHA-512');
is(md5_hex('The quick brown fox jumps over the lazy dog'), '9e107d9d372bb6826bd81d3542a419d6', 'MD5');
is(sprintf('%.17g %.3e %x %o %b %s', 0.1, 12345.678, 255, 8, 5, 1e300 * 1e10),
    '0.10000000000000001 1.235e+04 ff 10 101 Inf', 'sprintf');
is(join(',', map { sprintf '%.15g', $_ } sqrt(2), exp(1), log(10), sin(1), cos(1), atan2(1, 2)),
    '1.4142135623731,2.71828182845905,2.30258509299405,0.841470984807897,0.54030230586814,0.463647609000806'
    =~ s/1\.4142135623731,/1.4142135623731,/r, 'libm') or diag('rounded');
is(fmod(-7.5, 2), -1.5, 'fmod');
is(unpack('H*', pack('d>f>q>n', 1.5, -2.5, -3, 65535)), '3ff8000000000000c0200000fffffffffffffffdffff', 'pack');
my @sorted = sort { $a <=> $b } shuffle(1 .. 20000);
is_deeply(\@sorted, [1 .. 20000], 'sort');
my $text = join ' ', map { $_ * 7919 % 10007 } 1 .. 5000;
is(sum($text =~ /\b(\d*[13579])\b/g), sum(grep { $_ % 2 } split ' ', $text), 'regular expressions');
is(('a' x 200) =~ /^(a+)+$/ ? 'yes' : 'no', 'yes', 'backtracking');
my $tree = { map { $_ => [1 .. $_] } 1 .. 200 };
is_deeply(dclone($tree), $tree, 'Storable');
my $pid = open my $child, '-|', $^X, '-e', 'print $_ ** 2, "\n" for 1..100';
is(sum(map { chomp; $_ } <$child>), 338350, 'a child through a pipe');
local $SIG{ALRM} = sub { die "alarm\n" };
eval { alarm 1; 1 while 1; };
is($@, "alarm\n", 'a signal ends a loop');
done_testing();
