# Where the C library's own package does not do it whenever a library comes or goes.
/sbin/ldconfig
