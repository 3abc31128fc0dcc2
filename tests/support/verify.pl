# Prints the results of Mail::DKIM for each file that standard input names.
use strict;
use warnings;
use Mail::DKIM::Verifier;

while (my $path = <STDIN>) {
    chomp $path;
    open(my $file, '<:raw', $path) or die "$path: $!";
    my $content = do { local $/; <$file> };
    close($file);
    my $verifier = Mail::DKIM::Verifier->new();
    $verifier->PRINT($content);
    $verifier->CLOSE();
    my @results = map { $_->selector . '=' . $_->result } $verifier->signatures;
    print join(' ', $path, @results), "\n";
}
