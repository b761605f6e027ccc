# Reads the files of a directory again and again through handles that stay open, of the page cache and around it, and compares
# with what was read first. After each read it prints how many there were, how many failed or were wrong, and the last failure.
use strict;
use warnings;
use Fcntl qw(O_RDONLY SEEK_SET);

use constant O_DIRECT => 0x4000;
use constant CHUNK    => 1 << 20;

my ($directory) = @ARGV;
$| = 1;
my (@files, %expected);
for my $path (sort glob "$directory/file*") {
    for my $flags (O_RDONLY, O_RDONLY | O_DIRECT) {
        sysopen(my $handle, $path, $flags) or die "cannot open $path: $!";
        push @files, [$path, $handle];
    }
    $expected{$path} = whole($files[-2][1]);
}
die "no files in $directory" unless @files;

my ($reads, $wrong, $last) = (0, 0, "");
while (1) {
    for my $file (@files) {
        my ($path, $handle) = @$file;
        my $read = eval { whole($handle) };
        if (!defined $read || $read ne $expected{$path}) {
            $wrong++;
            $last = defined $read ? "$path: other bytes" : "$path: $@";
        }
        $reads++;
        print "$reads $wrong $last\n";
    }
}

# All bytes behind a handle.
sub whole {
    my ($handle) = @_;
    my $all = "";
    sysseek($handle, 0, SEEK_SET) or die "cannot seek: $!\n";
    while (1) {
        my $count = sysread($handle, $all, CHUNK, length $all);
        die "cannot read: $!\n" unless defined $count;
        return $all if $count == 0;
    }
}
