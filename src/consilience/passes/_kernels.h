/* Loops over numbers of one type for one instruction set.

Included by _loops.c once for each, with T (float or double), BYTES (of a vector), TALL and WIDE (the
sides of a tile: their product, one side and one vector must fit the registers), TARGET, NAME(), EACH()
(min or max of vectors, which compilers do not find), and LEVELS where T is double. No include guard. */

#define LANES ((Py_ssize_t)(BYTES / sizeof(T)))

#ifdef __GNUC__
typedef T NAME(V) __attribute__((vector_size(BYTES), aligned(sizeof(T)), may_alias));
#else
typedef T NAME(V);
#endif

/* Sums by halves, as few steps then depend on one another. */
TARGET static double NAME(total)(NAME(V) sums)
{
    T one[BYTES / sizeof(T)];
    memcpy(one, &sums, sizeof sums);
#pragma GCC unroll 8
    for (Py_ssize_t half = LANES / 2; half > 0; half /= 2)
#pragma GCC unroll 8
        for (Py_ssize_t k = 0; k < half; k++)
            one[k] += one[k + half];
    return one[0];
}

/* Returns zero if all of n numbers are finite, and NaN if not. */
TARGET static double NAME(never)(const T *x, Py_ssize_t n)
{
    NAME(V) sums;
    memset(&sums, 0, sizeof sums);
    Py_ssize_t k = 0;
    for (; k + LANES <= n; k += LANES)
        sums += *(const NAME(V) *)(x + k) * 0;
    double rest = 0;
    for (; k < n; k++)
        rest += (double)x[k] * 0;
    return NAME(total)(sums) + rest;
}

/* Converts n numbers of a row. */
TARGET static void NAME(convert)(const Row *row, Py_ssize_t at, Py_ssize_t n, T *restrict out)
{
    if (row->code == 'f') {
        const float *x = (const float *)row->data + at;
        for (Py_ssize_t k = 0; k < n; k++)
            out[k] = (T)x[k];
    } else if (row->code == 'd') {
        const double *x = (const double *)row->data + at;
        for (Py_ssize_t k = 0; k < n; k++)
            out[k] = (T)x[k];
    } else if (row->code == 'b') {
        const uint16_t *x = (const uint16_t *)row->data + at;
        for (Py_ssize_t k = 0; k < n; k++)
            out[k] = (T)from_bits((uint32_t)x[k] << 16);
    } else {
        const uint16_t *x = (const uint16_t *)row->data + at;
        for (Py_ssize_t k = 0; k < n; k++)
            out[k] = (T)from_half(x[k]);
    }
}

/* Writes a row's numbers at n places. */
TARGET static void NAME(look)(const Row *row, const int64_t *places, Py_ssize_t n, void *to)
{
    const void *data = row->data;
    T *restrict out = to;
    if (row->code == 'f')
        for (Py_ssize_t k = 0; k < n; k++)
            out[k] = (T)((const float *)data)[places[k]];
    else if (row->code == 'd')
        for (Py_ssize_t k = 0; k < n; k++)
            out[k] = (T)((const double *)data)[places[k]];
    else if (row->code == 'b')
        for (Py_ssize_t k = 0; k < n; k++)
            out[k] = (T)from_bits((uint32_t)((const uint16_t *)data)[places[k]] << 16);
    else
        for (Py_ssize_t k = 0; k < n; k++)
            out[k] = (T)from_half(((const uint16_t *)data)[places[k]]);
}

/* Returns a row's numbers from a place on: uncopied, or in the spare that holds their conversion. */
TARGET static const T *NAME(seen)(const Row *row, Py_ssize_t at, const T *spare)
{
    return row->code == (sizeof(T) == 4 ? 'f' : 'd') ? (const T *)row->data + at : spare;
}

/* The same, after converting n of them into the spare if they have another type. */
TARGET static const T *NAME(view)(const Row *row, Py_ssize_t at, Py_ssize_t n, T *spare)
{
    if (row->code != (sizeof(T) == 4 ? 'f' : 'd'))
        NAME(convert)(row, at, n, spare);
    return NAME(seen)(row, at, spare);
}

/* Rounds to the dtype of the output; clips to its range. */
TARGET static void NAME(store)(const T *restrict y, Py_ssize_t n, const Row *out, Py_ssize_t at)
{
    char *data = (char *)out->data;
    if (out->code == 'd') {
        double *to = (double *)data + at;
        for (Py_ssize_t k = 0; k < n; k++)
            to[k] = (double)y[k];
    } else if (out->code == 'f') {
        float *to = (float *)data + at;
        for (Py_ssize_t k = 0; k < n; k++)
            to[k] = (float)CLIP(y[k], (T)FLT_MAX);
    } else if (out->code == 'b') {
        uint16_t *to = (uint16_t *)data + at;
        for (Py_ssize_t k = 0; k < n; k++)
            to[k] = to_bfloat16((float)CLIP(y[k], (T)LARGEST_BFLOAT16));
    } else {
        uint16_t *to = (uint16_t *)data + at;
        for (Py_ssize_t k = 0; k < n; k++)
            to[k] = to_half((float)CLIP(y[k], (T)LARGEST_HALF));
    }
}

/* Adds the products of TALL rows with WIDE others, a vector of sums for each pair. */
TARGET static void NAME(tile)(const T *a, const T *b, Py_ssize_t n, Py_ssize_t width,
                              NAME(V) *sums)
{
    NAME(V) kept[TALL][WIDE];
    UNROLL
    for (int i = 0; i < TALL; i++)
        UNROLL
        for (int j = 0; j < WIDE; j++)
            kept[i][j] = sums[i * WIDE + j];
    for (Py_ssize_t k = 0; k < n; k += LANES) {
        NAME(V) x[TALL];
        UNROLL
        for (int i = 0; i < TALL; i++)
            x[i] = *(const NAME(V) *)(a + i * width + k);
        UNROLL
        for (int j = 0; j < WIDE; j++) {
            NAME(V) y = *(const NAME(V) *)(b + j * width + k);
            UNROLL
            for (int i = 0; i < TALL; i++)
                kept[i][j] += x[i] * y;
        }
    }
    UNROLL
    for (int i = 0; i < TALL; i++)
        UNROLL
        for (int j = 0; j < WIDE; j++)
            sums[i * WIDE + j] = kept[i][j];
}

/* The number of tiles that cover the lower triangle in the rows from i on. */
static Py_ssize_t NAME(beside)(Py_ssize_t points, Py_ssize_t i)
{
    return (LESSER(points, i + TALL) + WIDE - 1) / WIDE;
}

/* How many bytes the sums of all tiles take. */
static size_t NAME(room)(Py_ssize_t points)
{
    size_t tiles = 0;
    for (Py_ssize_t i = 0; i < points; i += TALL)
        tiles += NAME(beside)(points, i);
    return tiles * TALL * WIDE * BYTES;
}

/* Adds the sums of all tiles to the totals, and resets them. */
TARGET static void NAME(flush)(void *room, Py_ssize_t points, double *total)
{
    NAME(V) *sums = room;
    for (Py_ssize_t i = 0; i < points; i += TALL)
        for (Py_ssize_t t = 0; t < NAME(beside)(points, i); t++, sums += TALL * WIDE)
            for (Py_ssize_t p = i; p < LESSER(points, i + TALL); p++)
                for (Py_ssize_t q = t * WIDE; q < LESSER(p + 1, (t + 1) * WIDE); q++)
                    total[p * points + q] += NAME(total)(sums[(p - i) * WIDE + q - t * WIDE]);
    memset(room, 0, NAME(room)(points));
}

/* Writes n numbers of a row less the origin's, if there is one; a row without data is zero. */
TARGET static void NAME(pack)(const Row *row, Py_ssize_t at, Py_ssize_t n, const T *origin,
                              T *restrict out)
{
    const T *x = out;
    if (row->data == NULL)
        memset(out, 0, n * sizeof(T));
    else
        x = NAME(view)(row, at, n, out);
    if (origin != NULL)
        for (Py_ssize_t k = 0; k < n; k++)
            out[k] = x[k] - origin[k];
    else if (x != out)
        memcpy(out, x, n * sizeof(T));
}

/* Adds the inner products of n numbers of each row, less those of the row `about` if any, to the
sums of all tiles.

`buffer` holds `width` numbers of each row and of a few more, which stay zero. */
TARGET static void NAME(gram)(const Row *rows, Py_ssize_t points, Py_ssize_t about, Py_ssize_t at,
                              Py_ssize_t n, void *buffer, Py_ssize_t width, void *sums)
{
    T *packed = buffer;
    const T *origin = NULL;
    Py_ssize_t filled = (n + LANES - 1) / LANES * LANES;
    if (about >= 0)
        origin = NAME(view)(rows + about, at, n, packed + about * width);
    for (Py_ssize_t j = 0; j < points; j++) {
        T *row = packed + j * width;
        if (j != about)
            NAME(pack)(rows + j, at, n, origin, row);
        memset(row + n, 0, (filled - n) * sizeof(T));
    }
    if (about >= 0)
        memset(packed + about * width, 0, n * sizeof(T));
    NAME(V) *mine = sums;
    for (Py_ssize_t i = 0; i < points; i += TALL)
        for (Py_ssize_t t = 0; t < NAME(beside)(points, i); t++, mine += TALL * WIDE)
            NAME(tile)(packed + i * width, packed + t * WIDE * width, filled, width, mine);
}

/* Adds Σ w x of `count` rows, 1 to 4, to y. */
TARGET static void NAME(weigh)(const T *const *x, const T *w, Py_ssize_t count, Py_ssize_t n,
                               T *restrict y)
{
    const T *a = x[0], *b = x[count > 1], *c = x[count > 2 ? 2 : 0], *d = x[count > 3 ? 3 : 0];
    if (count == 4)
        for (Py_ssize_t k = 0; k < n; k++)
            y[k] += (w[0] * a[k] + w[1] * b[k]) + (w[2] * c[k] + w[3] * d[k]);
    else if (count == 3)
        for (Py_ssize_t k = 0; k < n; k++)
            y[k] += (w[0] * a[k] + w[1] * b[k]) + w[2] * c[k];
    else if (count == 2)
        for (Py_ssize_t k = 0; k < n; k++)
            y[k] += w[0] * a[k] + w[1] * b[k];
    else
        for (Py_ssize_t k = 0; k < n; k++)
            y[k] += w[0] * a[k];
}

/* Returns Σ (x − y)². */
TARGET static double NAME(apart)(const T *x, const T *y, Py_ssize_t n)
{
    NAME(V) one, two;
    memset(&one, 0, sizeof one);
    memset(&two, 0, sizeof two);
    Py_ssize_t k = 0;
    for (; k + 2 * LANES <= n; k += 2 * LANES) {
        NAME(V) p = *(const NAME(V) *)(x + k) - *(const NAME(V) *)(y + k);
        NAME(V) q = *(const NAME(V) *)(x + k + LANES) - *(const NAME(V) *)(y + k + LANES);
        one += p * p;
        two += q * q;
    }
    double rest = 0;
    for (; k < n; k++)
        rest += ((double)x[k] - y[k]) * ((double)x[k] - y[k]);
    return NAME(total)(one + two) + rest;
}

/* Adds Σ w x of 4 rows to y, and each row's squared distance from the one before it to `found`. */
TARGET static void NAME(ring)(const T *before, const T *const *x, const T *w, Py_ssize_t n, T *y,
                              double *found)
{
    NAME(V) sums[4];
    memset(sums, 0, sizeof sums);
    Py_ssize_t k = 0;
    for (; k + LANES <= n; k += LANES) {
        NAME(V) last = *(const NAME(V) *)(before + k), total = *(const NAME(V) *)(y + k);
        UNROLL
        for (int i = 0; i < 4; i++) {
            NAME(V) now = *(const NAME(V) *)(x[i] + k), apart = now - last;
            sums[i] += apart * apart;
            total += w[i] * now;
            last = now;
        }
        *(NAME(V) *)(y + k) = total;
    }
    for (int i = 0; i < 4; i++) {
        const T *last = i > 0 ? x[i - 1] : before;
        found[i] = NAME(total)(sums[i]);
        for (Py_ssize_t rest = k; rest < n; rest++)
            found[i] += ((double)x[i][rest] - last[rest]) * ((double)x[i][rest] - last[rest]);
    }
    for (; k < n; k++)
        y[k] += (w[0] * x[0][k] + w[1] * x[1][k]) + (w[2] * x[2][k] + w[3] * x[3][k]);
}

/* Forms n numbers of the sum of the rows with weight. Of the first `ring` rows, adds each one's
squared distance from the one before (for the first: from the last) to `squares`, using `found`.
Returns whether all is finite; if not, `squares` is unchanged. */
TARGET static int NAME(combine)(const Row *rows, Py_ssize_t count, const double *weights,
                                Py_ssize_t at, Py_ssize_t n, const Row *out, void *buffer,
                                Py_ssize_t width, Py_ssize_t ring, double *squares, double *found)
{
    T *y = buffer, *spare = (T *)buffer + width;
    int direct = out->code == (sizeof(T) == 4 ? 'f' : 'd');
    if (direct)
        y = (T *)out->data + at;
    memset(y, 0, n * sizeof(T));
    const T *four[4], *before = NULL;
    T w[4];
    if (ring > 0)
        before = NAME(view)(rows + ring - 1, at, n, spare + (ring - 1) * width);
    Py_ssize_t some = 0;
    for (Py_ssize_t j = 0; j < ring; j++) {
        four[some] = NAME(view)(rows + j, at, n, spare + j * width);
        w[some++] = (T)weights[j];
        if (some == 4) {
            NAME(ring)(before, four, w, n, y, found + j - 3);
            before = four[3];
            some = 0;
        }
    }
    for (Py_ssize_t i = 0; i < some; i++) { /* the last of them, one by one */
        found[ring - some + i] = NAME(apart)(four[i], i > 0 ? four[i - 1] : before, n);
        NAME(weigh)(four + i, w + i, 1, n, y);
    }
    some = 0;
    for (Py_ssize_t j = ring; j < count; j++) {
        if (weights[j] != 0) {
            four[some] = NAME(view)(rows + j, at, n, spare + j * width);
            w[some++] = (T)weights[j];
        }
        if (some == 4 || (some > 0 && j == count - 1)) {
            NAME(weigh)(four, w, some, n, y);
            some = 0;
        }
    }
    double never = NAME(never)(y, n);
    for (Py_ssize_t j = 0; j < ring; j++)
        never += found[j] * 0;
    if (!direct)
        NAME(store)(y, n, out, at);
    if (never != 0)
        return 0;
    for (Py_ssize_t j = 0; j < ring; j++)
        squares[j] += found[j];
    return 1;
}

/* Sorts each column of a block of `count` rows, COLUMNS wide, by Batcher's odd-even merge sort: a
fixed list of comparisons, with no branch. */
TARGET static void NAME(sort)(T *block, Py_ssize_t count)
{
    for (Py_ssize_t merged = 1; merged < count; merged *= 2)
        for (Py_ssize_t apart = merged; apart >= 1; apart /= 2)
            for (Py_ssize_t first = apart % merged; first + apart < count; first += 2 * apart)
                for (Py_ssize_t low = first; low < first + apart && low + apart < count; low++) {
                    if ((low ^ (low + apart)) >= 2 * merged) /* not of the two that are merged */
                        continue;
                    T *restrict a = block + low * COLUMNS;
                    T *restrict b = block + (low + apart) * COLUMNS;
                    for (Py_ssize_t k = 0; k < COLUMNS; k++) {
                        T x = a[k], y = b[k];
                        a[k] = x < y ? x : y;
                        b[k] = x < y ? y : x;
                    }
                }
}

/* Forms at most COLUMNS numbers of a trimmed mean. Adds each row's share in it to `shares` and its
squared distance from it to `squares`, where these are not NULL. Returns whether all is finite. */
TARGET static int NAME(trim)(const Row *rows, Py_ssize_t count, Py_ssize_t cut, Py_ssize_t at,
                             Py_ssize_t n, const Row *out, void *buffer, double *shares,
                             double *squares)
{
    T *given = buffer, *block = given + count * COLUMNS, y[COLUMNS];
    double sums[COLUMNS];
    for (Py_ssize_t j = 0; j < count; j++) {
        T *row = given + j * COLUMNS;
        NAME(convert)(rows + j, at, n, row);
        for (Py_ssize_t k = n; k < COLUMNS; k++)
            row[k] = 0;
    }
    double never = NAME(never)(given, count * COLUMNS);
    memcpy(block, given, count * COLUMNS * sizeof(T));
    NAME(sort)(block, count);
    const T *least = block + cut * COLUMNS, *most = block + (count - 1 - cut) * COLUMNS;
    for (Py_ssize_t k = 0; k < COLUMNS; k++)
        sums[k] = 0;
    for (const T *row = least; row <= most; row += COLUMNS)
        for (Py_ssize_t k = 0; k < COLUMNS; k++)
            sums[k] += row[k];
    for (Py_ssize_t k = 0; k < COLUMNS; k++)
        y[k] = (T)(sums[k] / (double)(count - 2 * cut));
    never += NAME(never)(y, n);
    NAME(store)(y, n, out, at);
    if (shares == NULL)
        return never == 0;
    T inside[COLUMNS];
    for (Py_ssize_t k = 0; k < COLUMNS; k++)
        inside[k] = 0;
    for (Py_ssize_t j = 0; j < count; j++)
        for (Py_ssize_t k = 0; k < COLUMNS; k++) {
            T x = given[j * COLUMNS + k];
            inside[k] += (T)(x >= least[k]) * (T)(x <= most[k]);
        }
    for (Py_ssize_t j = 0; j < count; j++) {
        double share = 0, square = 0;
        for (Py_ssize_t k = 0; k < n; k++) {
            T x = given[j * COLUMNS + k];
            if (x >= least[k] && x <= most[k])
                share += 1.0 / inside[k];
            square += ((double)x - y[k]) * ((double)x - y[k]);
        }
        shares[j] += share;
        squares[j] += square;
    }
    return never == 0;
}

#define MORE(a, b) ((a) > (b) ? (a) : (b))

/* Updates the two least and the two greatest of each of n columns with four more rows, or one. */
TARGET static void NAME(among)(const T *const *x, Py_ssize_t count, Py_ssize_t n, T *restrict ends)
{
    T *restrict top = ends, *restrict next = ends + PIECE;
    T *restrict low = ends + 2 * PIECE, *restrict above = ends + 3 * PIECE;
    if (count < 4) {
        for (Py_ssize_t k = 0; k < n; k++) {
            T a = x[0][k], second = LESSER(top[k], a), last = MORE(low[k], a);
            next[k] = MORE(next[k], second);
            top[k] = MORE(top[k], a);
            above[k] = LESSER(above[k], last);
            low[k] = LESSER(low[k], a);
        }
        return;
    }
    const T *p = x[0], *q = x[1], *r = x[2], *s = x[3];
    for (Py_ssize_t k = 0; k < n; k++) {
        T a = MORE(p[k], q[k]), b = LESSER(p[k], q[k]); /* pairs in order */
        T c = MORE(r[k], s[k]), d = LESSER(r[k], s[k]);
        T most = MORE(a, c), least = LESSER(b, d), inner = LESSER(a, c), outer = MORE(b, d);
        T beyond = MORE(inner, outer), before = LESSER(outer, inner); /* second of the four */
        T second = LESSER(top[k], most), last = MORE(low[k], least);
        beyond = MORE(beyond, second);
        before = LESSER(before, last);
        next[k] = MORE(next[k], beyond);
        top[k] = MORE(top[k], most);
        above[k] = LESSER(above[k], before);
        low[k] = LESSER(low[k], least);
    }
}

/* Adds Σ w x of 4 rows to y, with x clipped. Adds the squares of what was clipped to the first 4 of 8
sums, and each row's squared distance from the one before it to the others. */
TARGET static void NAME(cut)(const T *before, const T *const *x, const T *w, const T *least,
                             const T *most, Py_ssize_t n, T *y, NAME(V) *sums)
{
    NAME(V) kept[8];
    memcpy(kept, sums, sizeof kept);
    for (Py_ssize_t k = 0; k < n; k += LANES) {
        NAME(V) last = *(const NAME(V) *)(before + k), total = *(const NAME(V) *)(y + k);
        NAME(V) low = *(const NAME(V) *)(least + k), high = *(const NAME(V) *)(most + k);
        UNROLL
        for (int i = 0; i < 4; i++) {
            NAME(V) now = *(const NAME(V) *)(x[i] + k), apart = now - last;
            NAME(V) heard = (NAME(V))EACH(min)((NAME(V))EACH(max)(now, low), high), gone = now - heard;
            PREFETCH(x[i] + k + PIECE); /* what comes next */
            total += w[i] * heard;
            kept[i] += gone * gone;
            kept[4 + i] += apart * apart;
            last = now;
        }
        *(NAME(V) *)(y + k) = total;
    }
    memcpy(sums, kept, sizeof kept);
}

/* Finds where each of n columns is clipped: see `corroborate`. */
TARGET static void NAME(span)(const Sum *sum, const T *const *x, Py_ssize_t n, T *ends)
{
    const T *four[4];
    Py_ssize_t some = 0;
    for (Py_ssize_t k = 0; k < n; k++) {
        ends[k] = ends[PIECE + k] = -(T)INFINITY;
        ends[2 * PIECE + k] = ends[3 * PIECE + k] = (T)INFINITY;
    }
    for (Py_ssize_t j = 0; j < sum->parties; j++) {
        if (sum->witnesses[j])
            four[some++] = x[j];
        if (some == 4) {
            NAME(among)(four, 4, n, ends);
            some = 0;
        }
    }
    for (Py_ssize_t i = 0; i < some; i++)
        NAME(among)(four + i, 1, n, ends);
    T *restrict most = ends + PIECE, *restrict least = ends + 3 * PIECE, far = (T)sum->headroom;
    for (Py_ssize_t k = 0; k < n; k++) {
        T beyond = far * most[k] - far * least[k];
        most[k] += beyond;
        least[k] -= beyond;
    }
}

/* Forms n numbers of y, at most PIECE; what `cut` finds is added to 8 sums of each four rows. */
TARGET static void NAME(piece)(const Sum *sum, Py_ssize_t at, Py_ssize_t n, T *y, T *ends,
                               const T **x, T *spare, NAME(V) *sums)
{
    Py_ssize_t parties = sum->parties, filled = (n + LANES - 1) / LANES * LANES;
    for (Py_ssize_t j = 0; j < sum->count; j++, spare += PIECE) {
        x[j] = NAME(view)(sum->rows + j, at, n, spare);
        if (filled > n) { /* padded with zeros, which do not count */
            memmove(spare, x[j], n * sizeof(T));
            memset(spare + n, 0, (filled - n) * sizeof(T));
            x[j] = spare;
        }
    }
    NAME(span)(sum, x, filled, ends);
    memset(y, 0, filled * sizeof(T));
    for (Py_ssize_t j = 0; j < parties; j += 4, sums += 8) {
        const T *four[4], *before = x[j > 0 ? j - 1 : sum->ring > 0 ? sum->ring - 1 : 0];
        T w[4];
        for (Py_ssize_t i = 0; i < 4; i++) { /* the last row repeats, with no weight */
            four[i] = x[LESSER(j + i, parties - 1)];
            w[i] = j + i < parties ? (T)sum->weights[j + i] : 0;
        }
        NAME(cut)(before, four, w, ends + 3 * PIECE, ends + PIECE, filled, y, sums);
    }
    for (Py_ssize_t j = parties; j < sum->count; j++) {
        T w = (T)sum->weights[j];
        NAME(weigh)(x + j, &w, 1, n, y);
    }
    NAME(store)(y, n, sum->out, at);
}

/* Forms n numbers of the sum in which the first `parties` rows are clipped to the range from the
second least to the second greatest of the witnesses, widened on each side by `headroom` times its
width. Adds the squares of what was clipped of each row to `alone`, and the ring's squared distances
to `squares`. Returns whether all is finite; if not, the squares are unchanged. */
TARGET static int NAME(corroborate)(const Sum *sum, Py_ssize_t at, Py_ssize_t n)
{
    T *y = sum->room, *ends = y + PIECE, *spare = ends + 4 * PIECE;
    NAME(V) *sums = (NAME(V) *)(spare + sum->count * PIECE);
    double never = 0;
    memset(sums, 0, (sum->parties + 3) / 4 * 8 * sizeof *sums);
    for (Py_ssize_t done = 0; done < n; done += PIECE) {
        Py_ssize_t some = LESSER(PIECE, n - done);
        NAME(piece)(sum, at + done, some, y, ends, (const T **)sum->where, spare, sums);
        never += NAME(never)(y, some);
    }
    for (int add = 0; add < 2; add++) /* once all is known to be finite */
        for (Py_ssize_t j = 0; j < sum->parties && never == 0; j++) {
            double lost = NAME(total)(sums[j / 4 * 8 + j % 4]);
            double apart = j < sum->ring ? NAME(total)(sums[j / 4 * 8 + 4 + j % 4]) : 0;
            if (!add)
                never = lost * 0 + apart * 0; /* something not finite was clipped */
            else {
                sum->alone[j] += lost;
                if (j < sum->ring)
                    sum->squares[j] += apart;
            }
        }
    return never == 0;
}

#undef MORE

#ifdef LEVELS
#include "_levels.h"
#undef LEVELS
#endif

#undef LANES
#undef T
#undef BYTES
#undef TALL
#undef WIDE
#undef EACH
#undef TARGET
#undef NAME
