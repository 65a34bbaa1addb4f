//! The `strftime_now` of chat templates: Python's strftime in the C locale, over a time that the caller gives.

use crate::error::{Error, Result};

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct LocalTime {
    pub year: i32,
    /// 1 to 12.
    pub month: i32,
    /// 1 to 31.
    pub day: i32,
    pub hour: i32,
    pub minute: i32,
    pub second: i32,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

impl LocalTime {
    pub fn check(&self) -> Result<()> {
        let fine = (1..=9999).contains(&self.year)
            && (1..=12).contains(&self.month)
            && (1..=31).contains(&self.day)
            && (0..24).contains(&self.hour)
            && (0..60).contains(&self.minute)
            && (0..=60).contains(&self.second);
        if fine {
            Ok(())
        } else {
            Err(Error::invalid(format!("{self:?} is no time")))
        }
    }

    fn is_leap(&self) -> bool {
        self.year % 4 == 0 && (self.year % 100 != 0 || self.year % 400 == 0)
    }

    fn day_of_year(&self) -> i32 {
        const BEFORE: [i32; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
        BEFORE[(self.month - 1) as usize] + self.day + i32::from(self.is_leap() && self.month > 2)
    }

    /// 0 is Sunday.
    fn weekday(&self) -> usize {
        let y = self.year - 1;
        ((y + y / 4 - y / 100 + y / 400 + self.day_of_year()) % 7) as usize
    }

    pub fn format(&self, format: &str) -> String {
        let mut out = String::with_capacity(format.len() + 16);
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let rest = chars.as_str();
            let (padded, directive) = match chars.next() {
                Some('-') => (false, chars.next()),
                other => (true, other),
            };
            let text = directive.and_then(|d| self.directive(d));
            match text {
                Some(text) if padded => out.push_str(&text),
                Some(text) => {
                    let trimmed = text.trim_start_matches(['0', ' ']);
                    out.push_str(if trimmed.is_empty() { "0" } else { trimmed });
                }
                None => {
                    out.push('%');
                    chars = rest.chars();
                }
            }
        }
        out
    }

    fn directive(&self, directive: char) -> Option<String> {
        let hour12 = (self.hour + 11) % 12 + 1;
        let month = MONTHS[(self.month - 1) as usize];
        let day = DAYS[self.weekday()];
        Some(match directive {
            'Y' => self.year.to_string(),
            'y' => format!("{:02}", self.year % 100),
            'm' => format!("{:02}", self.month),
            'd' => format!("{:02}", self.day),
            'e' => format!("{:2}", self.day),
            'H' => format!("{:02}", self.hour),
            'I' => format!("{hour12:02}"),
            'M' => format!("{:02}", self.minute),
            'S' => format!("{:02}", self.second),
            'p' => if self.hour < 12 { "AM" } else { "PM" }.to_owned(),
            'B' => month.to_owned(),
            'b' | 'h' => month[..3].to_owned(),
            'A' => day.to_owned(),
            'a' => day[..3].to_owned(),
            'j' => format!("{:03}", self.day_of_year()),
            'w' => self.weekday().to_string(),
            'F' => self.format("%Y-%m-%d"),
            'T' => self.format("%H:%M:%S"),
            'D' => self.format("%m/%d/%y"),
            'R' => self.format("%H:%M"),
            'n' => "\n".to_owned(),
            't' => "\t".to_owned(),
            '%' => "%".to_owned(),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_like_python() {
        let time = LocalTime { year: 2025, month: 3, day: 9, hour: 12, minute: 34, second: 56 };
        assert_eq!(time.format("%d %b %Y"), "09 Mar 2025");
        assert_eq!(time.format("%A, %B %-d, %Y %I:%M %p"), "Sunday, March 9, 2025 12:34 PM");
        assert_eq!(time.format("%F %T %j %y %e %a %% %Q %"), "2025-03-09 12:34:56 068 25  9 Sun % %Q %");
        let leap = LocalTime { year: 2024, month: 12, day: 31, hour: 0, ..time };
        assert_eq!(leap.format("%j %A %I %-H"), "366 Tuesday 12 0");
    }

    #[test]
    fn refuses_what_is_no_time() {
        let time = LocalTime { year: 2025, month: 13, day: 9, hour: 12, minute: 34, second: 56 };
        assert!(time.check().is_err());
    }
}
